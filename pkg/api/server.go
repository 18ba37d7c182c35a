package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
)

// Config is what a Server needs.
type Config struct {
	Path     string // of the socket, 107 bytes at the most
	Group    string // name or number of a group that may use the socket; empty: root only
	Handlers gen.StrictServerInterface
	Logger   *slog.Logger
	Software string // version of this build, told to clients

	// RequestTimeout bounds a request, streams excepted. Zero means 10 minutes,
	// the longest wait that a request may ask for.
	RequestTimeout time.Duration
	// GraceTime is how long requests in flight may take at the end. Zero means 5 s.
	GraceTime time.Duration
}

// Server serves the API. Listen, then Serve.
type Server struct {
	cfg    Config
	http   *http.Server
	socket *socket
	stop   context.CancelFunc // ends the streams
}

// NewServer makes a server that does not listen yet.
func NewServer(cfg Config) *Server {
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = 10 * time.Minute
	}
	if cfg.GraceTime == 0 {
		cfg.GraceTime = 5 * time.Second
	}
	streams, stop := context.WithCancel(context.Background())
	s := &Server{cfg: cfg, stop: stop}
	fail := failer{cfg.Logger}
	strict := gen.NewStrictHandlerWithOptions(cfg.Handlers, []gen.StrictMiddlewareFunc{NewTrail(cfg.Logger).follow}, gen.StrictHTTPServerOptions{
		RequestErrorHandlerFunc:  fail.request,
		ResponseErrorHandlerFunc: fail.response,
	})
	mux := http.NewServeMux()
	mux.HandleFunc("/", fail.unknown)
	gen.HandlerWithOptions(strict, gen.StdHTTPServerOptions{BaseURL: v1.Base, BaseRouter: mux, ErrorHandlerFunc: fail.request})
	operation := func(r *http.Request) string {
		_, pattern := mux.Handler(r)
		return pattern
	}
	guard := guard{next: mux, operation: operation, fail: fail, software: cfg.Software, timeout: cfg.RequestTimeout, streams: streams}
	s.http = &http.Server{
		Handler:           guard,
		ConnContext:       withPeer,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
	}
	return s
}

// Listen makes the socket; connections wait until Serve. ErrInUse if another
// agent answers on it.
func (s *Server) Listen() error {
	l, err := listen(s.cfg.Path, s.cfg.Group)
	if err != nil {
		return err
	}
	s.socket = l
	return nil
}

// Serve answers until ctx ends, then lets requests in flight finish for the
// grace time. Streams end at once.
func (s *Server) Serve(ctx context.Context) error {
	defer s.stop()
	if s.socket == nil {
		return errors.New("serve the API: Listen was not called")
	}
	done := make(chan error, 1)
	go func() { done <- s.http.Serve(net.Listener(s.socket)) }()
	s.cfg.Logger.Info("API served", "socket", s.cfg.Path, "api-version", v1.Version)
	select {
	case err := <-done:
		s.socket.Close()
		return fmt.Errorf("serve the API on %s: %w", s.cfg.Path, err)
	case <-ctx.Done():
	}
	s.stop()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.GraceTime)
	defer cancel()
	err := s.http.Shutdown(grace)
	if err != nil {
		s.http.Close()
		err = fmt.Errorf("stop the API: requests were cut after %s: %w", s.cfg.GraceTime, err)
	}
	<-done
	return err
}
