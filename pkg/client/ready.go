package client

import (
	"context"
	"errors"
	"time"
)

// Times of WaitReady.
const (
	readyTimeout = 30 * time.Second
	readyPoll    = 20 * time.Millisecond
)

// WaitReady waits until the agent behind a socket takes CNI requests, 30 seconds
// at the most. The error is why it did not, the last time it was asked.
func WaitReady(ctx context.Context, socket, software string) error {
	c := New(socket, software, WithTimeout(2*time.Second))
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		s, err := c.Status(ctx)
		if err == nil && s.Ready {
			return nil
		}
		if err == nil {
			err = errors.New(s.Summary)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(readyPoll):
		}
	}
}
