package v1

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	"github.com/weirnet/weir/api/v1/gen"
)

// Code is the stable word for a kind of failure.
type Code string

// The codes. See the schema Error of the spec.
const (
	CodeInvalid   Code = "invalid-request"
	CodeVersion   Code = "version-mismatch"
	CodeForbidden Code = "forbidden"
	CodeNotFound  Code = "not-found"
	CodeConflict  Code = "conflict"
	CodeTooLarge  Code = "too-large"
	CodeExhausted Code = "exhausted"
	CodeNotReady  Code = "not-ready"
	CodeStarting  Code = "starting" // only reads are answered yet; the same request will be taken
	CodeInternal  Code = "internal"
	CodeTimeout   Code = "timeout"

	// CodeUnreachable and CodePermission are made by the client: the agent
	// does not answer, or may not be asked by this user.
	CodeUnreachable Code = "unreachable"
	CodePermission  Code = "permission"
)

var statuses = map[Code]int{
	CodeInvalid: http.StatusBadRequest, CodeVersion: http.StatusBadRequest, CodeForbidden: http.StatusForbidden,
	CodeNotFound: http.StatusNotFound, CodeConflict: http.StatusConflict, CodeTooLarge: http.StatusRequestEntityTooLarge,
	CodeExhausted: http.StatusServiceUnavailable, CodeNotReady: http.StatusServiceUnavailable, CodeStarting: http.StatusServiceUnavailable,
	CodeInternal: http.StatusInternalServerError, CodeTimeout: http.StatusGatewayTimeout,
}

// Status is the HTTP status that carries the code; 500 for an unknown one.
func (c Code) Status() int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Error is a failure with its kind and the next thing to try. The server
// writes it, the client returns it.
type Error struct {
	Code Code
	Text string // what failed, on what and why
	Next string // what to try; empty where nothing helps

	// LastStation and WaitingFor tell how far an endpoint came: names of
	// pkg/endpoint/regeneration; empty for other failures.
	LastStation string
	WaitingFor  string

	// Err is the cause; nil on the client's side of the socket.
	Err error
}

// NewError makes an Error whose text is that of err.
func NewError(code Code, err error, next string) *Error {
	return &Error{Code: code, Text: err.Error(), Next: next, Err: err}
}

// Errorf makes an Error from a text; %w keeps the cause.
func Errorf(code Code, next, format string, args ...any) *Error {
	return NewError(code, fmt.Errorf(format, args...), next)
}

// Error prints the text, how far an endpoint came, and the next thing to try.
func (e *Error) Error() string {
	s := e.Text
	if e.LastStation != "" || e.WaitingFor != "" {
		s += fmt.Sprintf(" (last finished station %s, waiting for %s)", cmp.Or(e.LastStation, "none"), cmp.Or(e.WaitingFor, "nothing"))
	}
	if e.Next != "" {
		s += "; " + e.Next
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Wire is the form of the spec.
func (e *Error) Wire() gen.Error {
	return gen.Error{Code: string(e.Code), Text: e.Text, Next: e.Next, LastStation: e.LastStation, WaitingFor: e.WaitingFor}
}

// FromWire is the reverse of Wire.
func FromWire(w gen.Error) *Error {
	return &Error{Code: Code(w.Code), Text: w.Text, Next: w.Next, LastStation: w.LastStation, WaitingFor: w.WaitingFor}
}

// CodeOf returns the code of an Error in err's chain, "" without one.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
