package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
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

// fakeEndpoint keeps the revisions of its policy as pkg/endpoint does: a change
// that does not concern it only raises the revision that it answers for.
type fakeEndpoint struct {
	subject policy.Subject
	repo    *Repository
	kick    chan struct{}

	mu                        sync.Mutex
	cond                      *sync.Cond
	state                     policy.MapState
	revision, next, concerned uint64
	err                       error
}

func (e *fakeEndpoint) run() {
	for range e.kick {
		answer, err := e.repo.Resolve(e.subject)
		e.mu.Lock()
		e.state, e.revision, e.err = answer.State, answer.Revision, errors.Join(e.err, err)
		e.next = max(e.next, e.revision)
		if e.revision >= e.concerned {
			e.revision = e.next
		}
		e.cond.Broadcast()
		e.mu.Unlock()
	}
}

// tell reports whether the endpoint has to build.
func (e *fakeEndpoint) tell(affected func(labels.LabelArray) bool, revision uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next = max(e.next, revision)
	if !affected(e.subject.Labels) {
		if e.revision >= e.concerned {
			e.revision = e.next
		}
		return false
	}
	e.concerned = max(e.concerned, revision)
	if e.revision >= revision {
		return false
	}
	select {
	case e.kick <- struct{}{}:
	default: // one is queued already, and will see this change
	}
	return true
}

func (e *fakeEndpoint) await(revision uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.revision < revision && e.err == nil {
		e.cond.Wait()
	}
}

// fakeManager is the updater.
type fakeManager []*fakeEndpoint

func (m fakeManager) PolicyChanged(affected func(labels.LabelArray) bool, revision uint64) func(context.Context) {
	var hit []*fakeEndpoint
	for _, e := range m {
		if e.tell(affected, revision) {
			hit = append(hit, e)
		}
	}
	return func(context.Context) {
		for _, e := range hit {
			e.await(revision)
		}
	}
}

func everybody(labels.LabelArray) bool { return true }

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
		wg.Go(e.run)
	}
	t.Cleanup(func() {
		for _, e := range m {
			close(e.kick)
		}
		wg.Wait()
	})
	m.PolicyChanged(everybody, r.Revision())(t.Context())
	return m
}

// check waits until the endpoint has done what it was told, and compares what it
// holds with what the repository's contents mean now.
func (e *fakeEndpoint) check(t *testing.T) {
	t.Helper()
	e.await(e.repo.Revision())
	e.mu.Lock()
	defer e.mu.Unlock()
	require.NoError(t, e.err)
	require.Equal(t, e.repo.Revision(), e.revision)
	_, policies := e.repo.Policies()
	want, err := policy.Resolve(e.subject, policies, types.ModeDefault, e.repo.rules.number).MapState(e.repo.Index())
	require.NoError(t, err)
	require.True(t, maps.Equal(want, e.state), "identity %d holds\n%v, the repository means\n%v", e.subject.Identity, e.state, want)
}

// Endpoints resolve while policies, identities and pods change, each from
// several sides at once. Once everybody has done what it was told, each endpoint
// must hold what the repository means and claim no more: a change that one is not
// told of, or told of after a later one, stays wrong for ever.
func TestEveryEndpointEndsWithThePolicyInForce(t *testing.T) {
	for round := range 100 {
		r := newRepository(t, "")
		web, db := policy.Subject{Identity: 1000, Labels: app("web")}, policy.Subject{Identity: 1001, Labels: app("db")}
		named := web
		named.NamedPorts = types.NamedPorts{{Name: "http", Proto: wtypes.ProtoTCP}: 80}
		require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{1000: app("web"), 1001: app("db")}, nil))
		m := startEndpoints(t, r, web, web, named, db, db)
		var wg sync.WaitGroup
		for _, subject := range []string{"web", "db", "web"} {
			wg.Go(func() {
				for i := range 20 {
					_, err := r.ReplaceByResource("of "+subject, []*types.Policy{allowFrom("n", subject, fmt.Sprintf("peer%d", i%5), 80)})
					assert.NoError(t, err)
				}
			})
		}
		for from := range identity.NumericIdentity(2) {
			wg.Go(func() {
				for i := range 20 {
					ids := identity.IdentityMap{2000 + 100*from + identity.NumericIdentity(i%10): app(fmt.Sprintf("peer%d", (i+round)%5))}
					assert.NoError(t, r.UpdateIdentities(t.Context(), ids, nil))
					if i%3 == 0 {
						assert.NoError(t, r.UpdateIdentities(t.Context(), nil, ids))
					}
				}
			})
		}
		wg.Go(func() {
			for i := range 20 {
				r.UpdatePods(map[netip.Addr]policy.Pod{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}): {Identity: 2000, NamedPorts: named.NamedPorts}}, nil)
			}
		})
		wg.Go(func() {
			for range 20 { // somebody asks why, for subjects that come and go
				_, err := r.Resolve(policy.Subject{Identity: 2000, Labels: app("peer0")})
				assert.NoError(t, err)
			}
		})
		wg.Wait()
		for _, e := range m {
			e.check(t)
		}
		added := identity.IdentityMap{}
		for p := range 5 {
			added[identity.NumericIdentity(3000+p)] = app(fmt.Sprintf("peer%d", p))
		}
		require.NoError(t, r.UpdateIdentities(t.Context(), added, nil))
		for _, e := range m {
			e.check(t)
		}
	}
}
