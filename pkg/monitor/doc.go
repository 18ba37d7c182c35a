// Package monitor turns the records of the data plane into events and hands
// them to whoever listens.
//
// # What
//
// Decode reads one record of the event ring into an Event: host byte order,
// addresses, wall-clock time. Source reads the ring and the counters of lost
// records and of those left out; Broker gives every event to all subscribers.
//
// # Neighbours
//
// Fed by maps/eventsmap (the ring) and maps/metricsmap (what found no room),
// through the interfaces ring and losses. Read by the API's stream, which adds
// the text of rules and the names of pods, and lets pass what was asked for.
//
// # Rules
//
// Decode takes any bytes and never panics. Publish never waits: what a
// subscriber cannot take is counted, and told to it in the stream as an event
// of type Lost at the place where events are missing. What an endpoint tells beyond its
// share never reaches the ring; it is counted in the kernel and told once a second, as
// type Lost with the endpoint.
//
// # After a restart
//
// Nothing is kept; records that waited in the ring are read first. The ring's
// pin is eventsmap's.
//
// # Try it
//
//	go test ./pkg/monitor
//	go test -fuzz FuzzDecode ./pkg/monitor
package monitor
