package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
)

// DefaultTimeout bounds a call whose caller sets no earlier deadline.
const DefaultTimeout = 30 * time.Second

// maxAnswer bounds an answer's size in bytes, streams excepted.
const maxAnswer = 64 << 20

// Client talks to one agent. It is safe for concurrent use.
type Client struct {
	socket  string
	timeout time.Duration
	api     *gen.Client
	conns   *http.Transport

	patience *patience // nil: none
}

// Option changes a Client.
type Option func(*Client)

// WithTimeout replaces DefaultTimeout.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// New makes a client for the socket; software is the caller's version, told to
// the agent. Nothing is dialled yet.
func New(socket, software string, opts ...Option) *Client {
	c := &Client{socket: socket, timeout: DefaultTimeout}
	for _, o := range opts {
		o(c)
	}
	c.conns = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
		MaxIdleConns:       2,
		IdleConnTimeout:    time.Minute,
	}
	c.api = &gen.Client{
		Server: "http://localhost" + v1.Base + "/",
		Client: &http.Client{Transport: c.conns},
		RequestEditors: []gen.RequestEditorFn{func(_ context.Context, r *http.Request) error {
			r.Header.Set(v1.VersionHeader, v1.Version)
			r.Header.Set(v1.SoftwareHeader, software)
			return nil
		}},
	}
	return c
}

// Close drops idle connections.
func (c *Client) Close() { c.conns.CloseIdleConnections() }

// call runs one request with the client's time limit and decodes the answer.
func call[T any](ctx context.Context, c *Client, what string, do func(context.Context) (*http.Response, error)) (T, int, error) {
	return callWithin[T](ctx, c, c.timeout, what, do)
}

// callWithin asks, and asks again as long as the client is patient.
func callWithin[T any](ctx context.Context, c *Client, limit time.Duration, what string, do func(context.Context) (*http.Response, error)) (T, int, error) {
	for {
		out, status, err := callOnce[T](ctx, c, limit, what, do)
		if err == nil {
			return out, status, nil
		}
		if err = c.patience.again(ctx, err); err != nil {
			return out, status, err
		}
	}
}

func callOnce[T any](ctx context.Context, c *Client, limit time.Duration, what string, do func(context.Context) (*http.Response, error)) (T, int, error) {
	var out T
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, err := do(ctx)
	if err != nil {
		return out, 0, c.explain(what, err)
	}
	defer resp.Body.Close()
	if err := c.check(what, resp); err != nil {
		return out, resp.StatusCode, err
	}
	if resp.StatusCode == http.StatusNoContent {
		return out, resp.StatusCode, nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out); err != nil {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out, resp.StatusCode, c.explain(what, err)
		}
		return out, resp.StatusCode, v1.Errorf(v1.CodeInternal, "compare the versions with weir version", "%s: read the agent's answer: %w", what, err)
	}
	return out, resp.StatusCode, nil
}

// check refuses an agent of another major version and turns a failure into its error.
func (c *Client) check(what string, resp *http.Response) error {
	peer := resp.Header.Get(v1.VersionHeader)
	if peer == "" {
		return v1.Errorf(v1.CodeVersion, "give the socket of weir-agent", "%s: what answers on %s is no weir agent: it tells no API version", what, c.socket)
	}
	if !v1.Compatible(peer) {
		return v1.Errorf(v1.CodeVersion, "install the same release of weir, weir-cni and weir-agent on this node",
			"%s: the agent on %s speaks API %s (release %s), this program API %s", what, c.socket, peer, resp.Header.Get(v1.SoftwareHeader), v1.Version)
	}
	if resp.StatusCode < 300 {
		return nil
	}
	var wire gen.Error
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(body, &wire)
	}
	if err != nil || wire.Code == "" {
		return v1.Errorf(v1.CodeInternal, "see the agent's log", "%s: the agent answered %s without a reason", what, resp.Status)
	}
	return v1.FromWire(wire)
}

// explain says in words why the agent could not be asked.
func (c *Client) explain(what string, err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return v1.Errorf(v1.CodeUnreachable, "start weir-agent, or name its socket if it is another one (weir --socket PATH, or WEIR_SOCKET_PATH)",
			"%s: the agent is not running: its socket %s is not there: %w", what, c.socket, err)
	case errors.Is(err, fs.ErrPermission):
		return v1.Errorf(v1.CodePermission, "run as root, or as a member of the group that the agent's socket-group setting names",
			"%s: this user may not use the agent's socket %s: %w", what, c.socket, err)
	case errors.Is(err, unix.ECONNREFUSED):
		return v1.Errorf(v1.CodeUnreachable, "start weir-agent; its log tells why it ended",
			"%s: the agent is not running: nobody listens on %s: %w", what, c.socket, err)
	case errors.Is(err, context.Canceled):
		return v1.Errorf(v1.CodeTimeout, "ask again", "%s: given up: %w", what, err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return v1.Errorf(v1.CodeTimeout, "weir status tells what the agent waits for", "%s: no answer from the agent on %s in time: %w", what, c.socket, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return v1.Errorf(v1.CodeUnreachable, "see whether weir-agent was restarted, and try again",
			"%s: the agent on %s went away before it answered: %w", what, c.socket, err)
	}
	return v1.Errorf(v1.CodeInternal, "see the agent's log, and whether the socket is its own", "%s: ask the agent on %s: %w", what, c.socket, err)
}
