package endpoint

import (
	"log/slog"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// The keys under which an endpoint's facts appear in every log line.
const (
	LogEndpointID = "endpointID"
	LogStation    = "station"
	LogState      = "state"
	LogPod        = "pod"
	LogIdentity   = "identity"
	LogError      = "error"
)

// newLogger derives the logger of one endpoint.
func newLogger(base *slog.Logger, id uint16, pod Pod) *slog.Logger {
	l := base.With(LogEndpointID, id)
	if pod.Known() {
		l = l.With(LogPod, pod.String())
	}
	return l
}

// Logger returns the endpoint's logger; with a station its lines carry the
// station's name.
func (e *Endpoint) Logger(station regeneration.Station) *slog.Logger {
	if station == "" {
		return e.log
	}
	return e.log.With(LogStation, string(station))
}
