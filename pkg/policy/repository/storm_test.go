package repository

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

func newRepository(t *testing.T, dir string) *Repository {
	t.Helper()
	r, err := New(Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), StateDir: dir})
	require.NoError(t, err)
	return r
}

func app(name string) labels.LabelArray {
	return labels.NewLabelArray(labels.New(labels.SourceK8s, "app", name))
}

func selects(name string) labels.Selector {
	return labels.Equals(labels.New(labels.SourceK8s, "app", name))
}

// allowFrom is a policy that isolates app's ingress but for one peer and port.
func allowFrom(name, subject, peer string, port uint16) *types.Policy {
	s := selects(peer)
	res := types.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: name, File: name + ".yaml", Line: 1}
	return &types.Policy{Resource: res, Subject: selects(subject), IsolatesIngress: true, Rules: []types.Rule{{
		Ref: types.RuleRef{Resource: res, Section: types.SectionIngress, Line: 7}, Verdict: types.Allow,
		Peers: []types.Peer{{Labels: &s}}, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: port}},
	}}}
}

// fakeEndpoint holds the last answer and asks again when it is told to.
type fakeEndpoint struct {
	subject policy.Subject
	repo    *Repository
	kick    chan struct{}

	mu   sync.Mutex
	cond *sync.Cond
	told uint64 // highest revision that concerned it
	held Resolved
	err  error
}

// await returns when the endpoint holds an answer for the revision, or for all
// that it was told of.
func (e *fakeEndpoint) await(revision uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.held.Revision < max(revision, e.told) && e.err == nil {
		e.cond.Wait()
	}
}

func (e *fakeEndpoint) run() {
	for range e.kick {
		answer, err := e.repo.Resolve(e.subject)
		e.mu.Lock()
		if err != nil {
			e.err = err
		} else if answer.Revision >= e.held.Revision {
			e.held = answer
		}
		e.cond.Broadcast()
		e.mu.Unlock()
	}
}

// fakeManager is the updater.
type fakeManager []*fakeEndpoint

func (m fakeManager) PolicyChanged(affected func(labels.LabelArray) bool, revision uint64) func(context.Context) {
	var hit []*fakeEndpoint
	for _, e := range m {
		if !affected(e.subject.Labels) {
			continue
		}
		hit = append(hit, e)
		e.mu.Lock()
		e.told = max(e.told, revision)
		e.mu.Unlock()
		select {
		case e.kick <- struct{}{}:
		default: // one is queued already, and will see this change
		}
	}
	return func(context.Context) {
		for _, e := range hit {
			e.await(revision)
		}
	}
}

func startEndpoints(t *testing.T, r *Repository, subjects ...policy.Subject) fakeManager {
	var m fakeManager
	for _, s := range subjects {
		e := &fakeEndpoint{subject: s, repo: r, kick: make(chan struct{}, 1)}
		e.cond = sync.NewCond(&e.mu)
		m = append(m, e)
	}
	r.Observe(m)
	var wg sync.WaitGroup
	for _, e := range m {
		e.kick <- struct{}{}
		wg.Go(e.run)
	}
	t.Cleanup(func() {
		for _, e := range m {
			close(e.kick)
		}
		wg.Wait()
	})
	m.PolicyChanged(func(labels.LabelArray) bool { return true }, r.Revision())(t.Context())
	return m
}

// check compares what an endpoint holds with what the repository's contents mean now.
func (e *fakeEndpoint) check(t *testing.T) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	require.NoError(t, e.err)
	_, policies := e.repo.Policies()
	want, err := policy.Resolve(e.subject, policies, types.ModeDefault, e.repo.rules.number).MapState(e.repo.Index())
	require.NoError(t, err)
	require.True(t, maps.Equal(want, e.held.State), "identity %d holds\n%v, the repository means\n%v", e.subject.Identity, e.held.State, want)
}

// Endpoints of one identity resolve at the same time as policies, identities and
// pods change. In the end each must hold what the repository means: a change
// that an endpoint is not told of stays wrong for ever.
func TestEveryEndpointEndsWithThePolicyInForce(t *testing.T) {
	for round := range 60 {
		r := newRepository(t, "")
		var subjects []policy.Subject
		for range 3 {
			subjects = append(subjects, policy.Subject{Identity: 1000, Labels: app("web")})
		}
		m := startEndpoints(t, r, append(subjects, policy.Subject{Identity: 1001, Labels: app("db")})...)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 30 {
				_, err := r.ReplaceByResource("n", []*types.Policy{allowFrom("n", "web", fmt.Sprintf("peer%d", i%5), 80)})
				require.NoError(t, err)
			}
		})
		wg.Go(func() {
			for i := range 30 {
				id := identity.NumericIdentity(2000 + i%10)
				ids := identity.IdentityMap{id: app(fmt.Sprintf("peer%d", (i+round)%5))}
				require.NoError(t, r.UpdateIdentities(t.Context(), ids, nil))
				if i%3 == 0 {
					require.NoError(t, r.UpdateIdentities(t.Context(), nil, ids))
				}
			}
		})
		wg.Go(func() {
			for i := range 30 {
				r.UpdatePods(map[netip.Addr]policy.Pod{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}): {Identity: 2000}}, nil)
			}
		})
		wg.Wait()
		for _, e := range m { // policies are told, not awaited
			e.await(0)
			e.check(t)
		}
		for _, id := range []identity.NumericIdentity{3000, 3001} { // told of these only if nothing was lost before
			added := identity.IdentityMap{}
			for p := range 5 {
				added[id+10*identity.NumericIdentity(p)] = app(fmt.Sprintf("peer%d", p))
			}
			require.NoError(t, r.UpdateIdentities(t.Context(), added, nil))
			for _, e := range m {
				e.check(t)
			}
		}
	}
}
