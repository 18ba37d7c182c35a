package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/weirnet/weir/api/v1"
)

// Limits of a request's body in bytes, and how long it may take to arrive.
const (
	maxBody       = 1 << 20
	maxPolicyBody = 16 << 20
	bodyTimeout   = 30 * time.Second
)

// guard is what every request passes first: versions, limits, the body's form,
// time, panics.
type guard struct {
	next      http.Handler
	operation func(*http.Request) string // the pattern that next serves the request under
	fail      failer
	software  string
	timeout   time.Duration
	streams   context.Context // ends with the server
	open      *atomic.Bool    // false: only reads are answered
}

func (g guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	out := &recorder{ResponseWriter: w}
	defer func() {
		if p := recover(); p != nil {
			g.panicked(out, r, p)
		}
		g.fail.log.Debug("API request", "method", r.Method, "path", r.URL.Path, "status", out.status, "duration", time.Since(start))
	}()
	out.Header().Set(v1.VersionHeader, v1.Version)
	out.Header().Set(v1.SoftwareHeader, g.software)
	if err := g.checkVersion(r); err != nil {
		g.fail.response(out, r, err)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead && !g.open.Load() {
		g.fail.response(out, r, v1.Errorf(v1.CodeStarting, "wait; weir status tells what the agent is at", "%s %s: the agent is starting", r.Method, r.URL.Path))
		return
	}
	if err := readBody(w, r, g.operation(r)); err != nil {
		g.fail.response(out, r, err)
		return
	}
	var ctx context.Context
	var cancel context.CancelFunc
	if r.URL.Path == v1.Base+"/monitor" {
		ctx, cancel = context.WithCancel(r.Context())
		defer context.AfterFunc(g.streams, cancel)()
	} else {
		ctx, cancel = context.WithTimeout(r.Context(), g.timeout)
	}
	defer cancel()
	g.next.ServeHTTP(out, r.WithContext(ctx))
}

func (g guard) checkVersion(r *http.Request) error {
	peer := r.Header.Get(v1.VersionHeader)
	if peer == "" || v1.Compatible(peer) {
		return nil
	}
	return v1.Errorf(v1.CodeVersion, "install the same release of weir, weir-cni and weir-agent on this node",
		"the client speaks API %s (release %s), this agent API %s (release %s)", peer, orUnknown(r.Header.Get(v1.SoftwareHeader)), v1.Version, orUnknown(g.software))
}

// readBody takes the whole body into memory and checks its form, so that a slow
// or endless sender and what the spec does not have are refused before a handler
// runs.
func readBody(w http.ResponseWriter, r *http.Request, operation string) error {
	limit := int64(maxBody)
	if strings.HasPrefix(r.URL.Path, v1.Base+"/policy") {
		limit = maxPolicyBody
	}
	if r.ContentLength > limit {
		return tooLarge(limit)
	}
	if r.ContentLength == 0 {
		return checkBody(operation, nil)
	}
	conn := http.NewResponseController(w)
	conn.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	conn.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return v1.Errorf(v1.CodeTimeout, "send the request again", "the request's body did not arrive within %s", bodyTimeout)
	case err != nil:
		return v1.Errorf(v1.CodeInvalid, "send the request again", "read the request's body: %w", err)
	case int64(len(body)) > limit:
		return tooLarge(limit)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return checkBody(operation, body)
}

func tooLarge(limit int64) error {
	return v1.Errorf(v1.CodeTooLarge, "send fewer objects in one request", "the request's body is larger than %d bytes", limit)
}

func (g guard) panicked(out *recorder, r *http.Request, p any) {
	if p == http.ErrAbortHandler {
		panic(p)
	}
	g.fail.log.Error("API handler panicked", "method", r.Method, "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	if out.status == 0 {
		g.fail.response(out, r, v1.Errorf(v1.CodeInternal, "see the agent's log for the stack, and report it", "%s %s: the handler panicked: %v", r.Method, r.URL.Path, p))
		return
	}
	panic(http.ErrAbortHandler) // half an answer went out: cut the connection
}

// recorder remembers the status; 0 until the header is written.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// failer writes failures in the one form.
type failer struct{ log *slog.Logger }

// request is for a request that could not be read.
func (f failer) request(w http.ResponseWriter, r *http.Request, err error) {
	f.response(w, r, v1.Errorf(v1.CodeInvalid, "compare the request with api/v1/openapi.yaml", "%s %s: %w", r.Method, r.URL.Path, err))
}

// unknown is for a path or method that the spec does not have.
func (f failer) unknown(w http.ResponseWriter, r *http.Request) {
	f.response(w, r, v1.Errorf(v1.CodeNotFound, "see api/v1/openapi.yaml for the operations", "%s %s: there is no such operation", r.Method, r.URL.Path))
}

// response is for an error that a handler returned.
func (f failer) response(w http.ResponseWriter, r *http.Request, err error) {
	var e *v1.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.DeadlineExceeded):
		e = v1.Errorf(v1.CodeTimeout, "ask again; weir status tells what the agent waits for", "%s %s: %w", r.Method, r.URL.Path, err)
	case r.Context().Err() != nil:
		f.log.Debug("API client went away", "method", r.Method, "path", r.URL.Path, "error", err)
		return
	default:
		e = v1.Errorf(v1.CodeInternal, "see the agent's log", "%s %s: %w", r.Method, r.URL.Path, err)
	}
	if e.Code.Status() >= http.StatusInternalServerError && e.Code != v1.CodeStarting {
		f.log.Warn("API request failed", "method", r.Method, "path", r.URL.Path, "code", string(e.Code), "error", err)
	}
	writeJSON(w, e.Code.Status(), e.Wire())
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
