package api

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/spell"
)

// maxNames is how many objects a line of the trail names; the others it counts.
const maxNames = 10

// Who changed something.
type Who struct {
	Name string // "file", "delete queue"; empty: a process behind the socket
	UID  uint32 // of the process
	PID  int32  // of the process; 0 where it is in no namespace that the agent sees
}

// Those who change something without a request.
var (
	ByFile        = Who{Name: "file"}
	ByDeleteQueue = Who{Name: "delete queue"}
)

func (w Who) String() string {
	if w.Name != "" {
		return w.Name
	}
	return fmt.Sprintf("uid %d", w.UID)
}

// Change is one line of the trail.
type Change struct {
	Who      Who
	Action   string // "policy apply"
	What     string // the objects
	Revision uint64 // of the policies that has the change; 0: none has
	Err      error  // why it failed, in whole or in part
}

// Trail writes a line of the log for every change that somebody asked for.
type Trail struct{ log *slog.Logger }

// NewTrail writes to a log.
func NewTrail(log *slog.Logger) Trail { return Trail{log} }

// Tell writes a line.
func (t Trail) Tell(c Change) {
	attrs := []any{"who", c.Who.String()}
	if c.Who.PID != 0 {
		attrs = append(attrs, "pid", c.Who.PID)
	}
	attrs = append(attrs, "action", c.Action, "what", c.What)
	if c.Revision != 0 {
		attrs = append(attrs, "revision", c.Revision)
	}
	if c.Err != nil {
		attrs = append(attrs, "error", c.Err)
	}
	t.log.Info("Change", attrs...)
}

// Names lists objects for a line.
func Names(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

type peerKey struct{}

// withPeer keeps who is behind a connection for its requests.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, Who{UID: cred.Uid, PID: cred.Pid})
}

// peer is who sent a request.
func peer(ctx context.Context) Who {
	if w, ok := ctx.Value(peerKey{}).(Who); ok {
		return w
	}
	return Who{Name: "unknown"}
}

// changing reports whether an operation may change something.
func changing(r *http.Request, operation string) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && operation != "ValidatePolicy"
}

// follow tells of every operation that changes something. An operation that
// describe does not know is told by its name and path.
func (t Trail) follow(next gen.StrictHandlerFunc, operation string) gen.StrictHandlerFunc {
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, request any) (any, error) {
		if !changing(r, operation) {
			return next(ctx, w, r, request)
		}
		c := Change{Who: peer(ctx), Action: operation, What: r.Method + " " + r.URL.Path}
		asked(&c, request)
		answer, err := next(context.WithValue(ctx, changeKey{}, &c), w, r, request)
		if _, same := answer.(gen.PutEndpoint200JSONResponse); same && err == nil {
			return answer, err // the endpoint was there
		}
		if c.Err = err; err == nil {
			done(&c, answer)
		}
		t.Tell(c)
		return answer, err
	}
}

type changeKey struct{}

// kept tells the trail of a change of policies that an operation made although it
// fails: it is kept, but not in force everywhere.
func kept(ctx context.Context, p PolicyChange) {
	if c, ok := ctx.Value(changeKey{}).(*Change); ok && p.Revision != 0 {
		c.policies(changeModel(p))
	}
}

// asked describes a request.
func asked(c *Change, request any) {
	switch q := request.(type) {
	case gen.PutPolicyRequestObject:
		c.Action, c.What = "policy apply", "the objects of "+orUnknown(value(q.Params.File))
	case gen.DeletePolicyRequestObject:
		c.Action, c.What = "policy delete", refName(gen.PolicyRef{Kind: q.Kind, Namespace: namespace(q.Namespace), Name: q.Name})
	case gen.PatchEndpointRequestObject:
		c.Action, c.What = "endpoint settings", fmt.Sprintf("endpoint %s: %s", q.ID, settingsText(q.Body))
	case gen.PutEndpointRequestObject:
		c.Action, c.What = "endpoint create", "endpoint "+q.ID
	case gen.DeleteEndpointRequestObject:
		c.Action, c.What = "endpoint delete", "endpoint "+q.ID
	case gen.DeleteEndpointsRequestObject:
		c.Action, c.What = "endpoint delete", strings.TrimSpace("container "+q.Params.ContainerID+" "+value(q.Params.Interface))
	case gen.AcceptSourceRequestObject:
		c.Action, c.What = "source accept", q.Params.Path
	case gen.PostIPAMRequestObject:
		c.Action, c.What = "address lease", "for "+q.Body.Owner
	case gen.DeleteIPAMRequestObject:
		c.Action, c.What = "address release", q.IP
	}
}

// done adds what an answer tells more than the request.
func done(c *Change, answer any) {
	switch a := answer.(type) {
	case gen.PutPolicy200JSONResponse:
		c.policies(gen.PolicyChange(a))
	case gen.DeletePolicy200JSONResponse:
		c.policies(gen.PolicyChange(a))
	case gen.PatchEndpoint200JSONResponse:
		_, settings, _ := strings.Cut(c.What, ": ")
		c.What, c.Revision = endpointName(gen.Endpoint(a))+": "+settings, a.Policy.Revision
	case gen.PutEndpoint201JSONResponse:
		c.What, c.Revision = strings.TrimSpace(fmt.Sprintf("%s %s %s", endpointName(gen.Endpoint(a)), a.Addressing.Ipv4, a.Addressing.Ipv6)), a.Policy.Revision
	case gen.DeleteEndpoint200JSONResponse:
		c.deleted(gen.DeleteResult(a))
	case gen.DeleteEndpoints200JSONResponse:
		c.deleted(gen.DeleteResult(a))
	case gen.PostIPAM201JSONResponse:
		c.What = strings.TrimSpace(strings.Join([]string{a.Ipv4, a.Ipv6}, " ")) + " " + c.What
	}
}

func (c *Change) policies(p gen.PolicyChange) {
	names := make([]string, len(p.Policies))
	for i, r := range p.Policies {
		names[i] = refName(r)
	}
	c.Revision = p.Revision
	if len(names) > 0 {
		c.What = Names(names)
	}
}

func (c *Change) deleted(r gen.DeleteResult) {
	c.What += ": " + spell.Count(r.Deleted, "endpoint")
	if len(r.Texts) > 0 {
		c.Err = fmt.Errorf("not removed completely: %s", Names(r.Texts))
	}
}

func refName(r gen.PolicyRef) string {
	return r.Kind + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/")
}

func endpointName(e gen.Endpoint) string {
	if e.Pod.Name == "" {
		return fmt.Sprintf("endpoint %d", e.ID)
	}
	return fmt.Sprintf("endpoint %d (%s/%s)", e.ID, e.Pod.Namespace, e.Pod.Name)
}

// settingsText says which settings are asked for.
func settingsText(s *gen.EndpointSettings) string {
	var out []string
	if s == nil {
		return ""
	}
	if s.Audit != nil {
		word := "off"
		if *s.Audit {
			word = "on"
		}
		out = append(out, "audit "+word)
	}
	if s.Enforcement != "" {
		out = append(out, "enforcement "+string(s.Enforcement))
	}
	return strings.Join(out, ", ")
}
