package bpf

import "sync"

// UpdateLock serialises the writers of one map. It is held around one write or
// one batch, or around a read that the next write depends on, and never across
// a call into another package. The zero value is unlocked.
type UpdateLock struct {
	mu sync.Mutex
}

// Do runs write while no other writer of the map is at work.
func (l *UpdateLock) Do(write func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return write()
}
