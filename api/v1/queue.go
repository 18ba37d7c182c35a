package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"
)

// The delete queue: a folder below the run directory in which the CNI plugin
// leaves the deletions that it could not tell the agent. A writer holds the
// lock file shared; the agent exclusively while it looks what is left, and until it
// takes deletions itself.
const (
	QueueDir     = "deleteQueue" // below the run directory
	QueueLock    = "lock"        // flock(2); never removed
	QueueSuffix  = ".json"       // of a request
	QueueTemp    = ".tmp-"       // prefix of a request that is being written
	QueueBadDir  = "bad"         // where former agents put requests that they could not read
	QueueEntries = 4096          // requests at the most
)

// AgentLock is the file of the run directory that an agent holds locked
// (F_OFD_SETLK) as long as its process lives, from before it reads any state.
const AgentLock = "agent.lock"

// QueuedDelete is one file of the queue.
type QueuedDelete struct {
	Version     int       `json:"version"` // 1
	ContainerID string    `json:"containerId"`
	Interface   string    `json:"interface"` // name in the pod; empty: all of the container's
	Queued      time.Time `json:"queued"`
}

// QueueVersion is the version of the form that this code writes and reads.
const QueueVersion = 1

// FileName is the same for the same attachment, so that a repeated deletion
// takes no further entry.
func (q QueuedDelete) FileName() string {
	sum := sha256.Sum256([]byte(q.ContainerID + "\x00" + q.Interface))
	return hex.EncodeToString(sum[:16]) + QueueSuffix
}

// Check reports what makes the request useless.
func (q QueuedDelete) Check() error {
	switch {
	case q.Version != QueueVersion:
		return errors.New("the version is not 1; it was written by another release")
	case q.ContainerID == "":
		return errors.New("containerId is empty")
	}
	return nil
}
