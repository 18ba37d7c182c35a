package cmd

import (
	"errors"
	"io/fs"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// keepPipes lets a write to a reader that went away fail, where else SIGPIPE
// would end the process with its clean-up undone. Commands that it starts have
// the signal as ever: it is caught, not ignored. The function returned ends it.
func keepPipes() func() {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGPIPE)
	return func() { signal.Stop(caught) }
}

// withoutPipe takes out of an error that the reader of the output went away,
// which needs no message, and reports whether it did.
func withoutPipe(err error) (rest error, gone bool) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var kept []error
		for _, e := range joined.Unwrap() {
			left, g := withoutPipe(e)
			kept, gone = append(kept, left), gone || g
		}
		if !gone {
			return err, false
		}
		return errors.Join(kept...), true
	}
	// A socket's error is a net.OpError; only files give a PathError.
	var path *fs.PathError
	if errors.As(err, &path) && errors.Is(path.Err, unix.EPIPE) {
		return nil, true
	}
	return err, false
}
