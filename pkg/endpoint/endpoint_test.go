package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
)

// fakeIdentities is an allocator that counts references, and the policy that is
// told of numbers.
type fakeIdentities struct {
	mu    sync.Mutex
	next  identity.NumericIdentity
	byKey map[string]identity.NumericIdentity
	refs  map[identity.NumericIdentity]int
	known map[identity.NumericIdentity]bool // announced to the policy
	fail  int                               // that many allocations fail
	hold  chan struct{}                     // allocations wait for it
	calls int
}

func newFakeIdentities() *fakeIdentities {
	return &fakeIdentities{
		next: 1000, byKey: map[string]identity.NumericIdentity{},
		refs: map[identity.NumericIdentity]int{}, known: map[identity.NumericIdentity]bool{},
	}
}

func (f *fakeIdentities) Allocate(ctx context.Context, ls labels.LabelArray) (*identity.Identity, bool, error) {
	f.mu.Lock()
	hold := f.hold
	f.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.fail > 0 {
		f.fail--
		return nil, false, errors.New("allocator is away")
	}
	if n, ok := identity.LookupReservedByLabels(ls); ok {
		return identity.New(n, ls), false, nil
	}
	n, ok := f.byKey[ls.Key()]
	if !ok {
		f.next++
		n = f.next
		f.byKey[ls.Key()] = n
	}
	f.refs[n]++
	return identity.New(n, ls), f.refs[n] == 1, nil
}

func (f *fakeIdentities) Release(_ context.Context, n identity.NumericIdentity) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refs[n] == 0 {
		return false, fmt.Errorf("%d has no reference", n)
	}
	f.refs[n]--
	if f.refs[n] == 0 {
		delete(f.refs, n)
		return true, nil
	}
	return false, nil
}

func (f *fakeIdentities) UpdateIdentities(_ context.Context, added, removed identity.IdentityMap) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n := range added {
		f.known[n] = true
	}
	for n := range removed {
		delete(f.known, n)
	}
	return nil
}

func (f *fakeIdentities) counts() (refs int, known int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.refs {
		refs += n
	}
	return refs, len(f.known)
}

type scene struct {
	t    *testing.T
	ids  *fakeIdentities
	cfg  Config
	stop func()
	mu   sync.Mutex
	seen map[uint16][]regeneration.State
}

// newScene runs a builder that succeeds at once, unless build says otherwise.
func newScene(t *testing.T, build func(*Build)) *scene {
	s := &scene{t: t, ids: newFakeIdentities(), seen: map[uint16][]regeneration.State{}}
	log := slog.New(slog.DiscardHandler)
	s.cfg = Config{
		Logger: log, StateDir: t.TempDir(), Queue: NewBuildQueue(4),
		Identities: NewIdentityKeeper(log, s.ids, s.ids),
		Observe: func(_, r *Row) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if l := s.seen[r.ID]; len(l) == 0 || l[len(l)-1] != r.State {
				s.seen[r.ID] = append(l, r.State)
			}
		},
	}
	if build == nil {
		build = succeed
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			b, err := s.cfg.Queue.Next(ctx)
			if err != nil {
				return
			}
			wg.Add(1)
			go func() { defer wg.Done(); defer s.cfg.Queue.Done(b); build(b) }()
		}
	}()
	s.stop = func() { cancel(); wg.Wait(); s.cfg.Identities.Close() }
	return s
}

func succeed(b *Build) {
	row, _, ok := b.Endpoint.BeginBuild()
	if ok {
		b.Endpoint.CommitBuild(Outcome{Layout: row.Desired(), PolicyRevision: max(row.NextPolicyRevision, 1), Settings: row.Settings})
	}
}

func (s *scene) endpoint(n uint16) *Endpoint {
	e, err := New(s.cfg, Row{ID: n, Link: testLink(n), Pod: Pod{"shop", fmt.Sprintf("pod-%d", n), ""}})
	require.NoError(s.t, err)
	return e
}

func testLink(n uint16) Link {
	return Link{
		ContainerID: fmt.Sprintf("c%d", n), ContainerInterface: "eth0", HostInterface: fmt.Sprintf("weir%d", n),
		IfIndex: 100 + int(n), MAC: types.MAC{2, 0, 0, 0, byte(n >> 8), byte(n)}, NodeMAC: types.MAC{2, 1, 0, 0, byte(n >> 8), byte(n)},
		IPv4: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}),
	}
}

func app(v string) labels.LabelArray {
	return labels.NewLabelArray(labels.Label{Source: labels.SourceK8s, Key: "app", Value: v})
}

func (s *scene) ready(e *Endpoint) *Row {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	require.NoError(s.t, e.WaitReady(ctx))
	return e.Row()
}

func TestALifeFromCreationToReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, nil)
		e := s.endpoint(1)
		require.Equal(t, regeneration.StateWaitingForIdentity, e.Row().State)
		require.NoError(t, e.SetLabels(app("api"), nil, nil))
		r := s.ready(e)
		require.EqualValues(t, 1001, r.Identity)
		require.True(t, r.Health().OK)
		synctest.Wait()
		require.Equal(t, []regeneration.State{
			regeneration.StateWaitingForIdentity, regeneration.StateWaitingToRegenerate,
			regeneration.StateRegenerating, regeneration.StateReady,
		}, s.seen[1])
		e.Close()
		_, err := e.LockAlive()
		require.ErrorIs(t, err, ErrNotAlive)
		s.stop()
	})
}

// Every pair of states, driven through SetState.
func TestSetStateFollowsTheTable(t *testing.T) {
	s := newScene(t, nil)
	defer s.stop()
	for _, from := range regeneration.States() {
		for _, to := range regeneration.States() {
			e := newEndpoint(s.cfg, Row{ID: 9, State: from}, nil)
			turn := &Turn{e: e, Row: &Row{State: from}, state: from}
			got := turn.SetState(to, "test")
			require.Equal(t, regeneration.Allowed(from, to), got, "%s to %s", from, to)
			want := from
			if got {
				want = to
			}
			require.Equal(t, want, turn.State())
			queued := to == regeneration.StateReady && (from == regeneration.StateWaitingToRegenerate || from == regeneration.StateWaitingForIdentity)
			warned := !got && from != to && !queued && from.Alive()
			noted := false
			for _, l := range e.StatusLog() {
				noted = noted || l.Severity == SeverityWarning
			}
			require.Equal(t, warned, noted, "%s to %s noted", from, to)
			e.kill()
		}
	}
}

func TestRequestsMergeWhileOneIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var levels []regeneration.Level
		s := newScene(t, func(b *Build) {
			<-gate
			row, level, ok := b.Endpoint.BeginBuild()
			if ok {
				levels = append(levels, regeneration.Max(level, b.Level))
				b.Endpoint.CommitBuild(Outcome{Layout: row.Desired(), PolicyRevision: 1})
			}
		})
		e := s.endpoint(1)
		require.False(t, e.Regenerate(regeneration.LevelPolicy, "too early"), "the identity brings the build")
		require.NoError(t, e.SetLabels(app("api"), nil, nil))
		gate <- struct{}{}
		s.ready(e)
		require.True(t, e.Regenerate(regeneration.LevelPolicy, "first"))
		require.False(t, e.Regenerate(regeneration.LevelLoad, "second"), "merged")
		require.False(t, e.Regenerate(regeneration.LevelPolicy, "third"), "merged")
		gate <- struct{}{}
		s.ready(e)
		synctest.Wait()
		close(gate)
		require.Equal(t, []regeneration.Level{regeneration.LevelLoad, regeneration.LevelLoad}, levels)
		e.Close()
		s.stop()
	})
}

func TestB33AllocatorDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, nil)
		hold := make(chan struct{})
		s.ids.hold = hold
		slow := s.endpoint(1)
		require.NoError(t, slow.SetLabels(app("old"), nil, nil))
		time.Sleep(15 * time.Second)
		require.NoError(t, slow.SetLabels(app("new"), nil, nil))
		s.ids.mu.Lock()
		s.ids.hold = nil // the next ones are quick
		s.ids.mu.Unlock()
		other := s.endpoint(2)
		require.NoError(t, other.SetLabels(app("other"), nil, nil))
		s.ready(other)
		time.Sleep(15 * time.Second)
		require.Equal(t, regeneration.StateWaitingForIdentity, slow.Row().State)
		require.NotEmpty(t, slow.Row().Reason)
		_, waiting := slow.Progress()
		require.Equal(t, regeneration.StationIdentity, waiting)
		start := time.Now()
		close(hold)
		r := s.ready(slow)
		require.LessOrEqual(t, time.Since(start), 5*time.Second, "fake time after the answer")
		require.Equal(t, s.ids.byKey[app("new").Key()], r.Identity, "the latest labels win")
		synctest.Wait()
		refs, known := s.ids.counts()
		require.Equal(t, 2, refs, "the answer for the old labels was given back")
		require.Equal(t, 2, known)
		slow.Close()
		other.Close()
		s.stop()
	})
}

func TestB33AllocatorFailsThreeTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, nil)
		s.ids.fail = 3
		e := s.endpoint(1)
		require.NoError(t, e.SetLabels(app("api"), nil, nil))
		synctest.Wait()
		require.Contains(t, e.Row().Reason, "allocator is away", "the reason is visible")
		start := time.Now()
		s.ready(e)
		require.LessOrEqual(t, time.Since(start), 5*time.Second, "fake time")
		require.Equal(t, 4, s.ids.calls)
		require.Empty(t, e.Row().Reason)
		e.Close()
		s.stop()
	})
}

func TestB33RestoredAsInitThenRealLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, nil)
		e := s.endpoint(1)
		require.NoError(t, e.SetLabels(labels.NewLabelArray(labels.Reserved(labels.NameInit)), nil, nil))
		require.Equal(t, identity.ReservedInit, s.ready(e).Identity)
		synctest.Wait()
		e.Close()

		recs, bad, err := ReadAll(s.cfg.StateDir, "")
		require.NoError(t, err)
		require.Empty(t, bad)
		require.Len(t, recs, 1)
		again := Restore(s.cfg, recs[0])
		require.Equal(t, regeneration.StateRestoring, again.Row().State)
		again.Resume()
		require.NoError(t, again.SetLabels(app("real"), nil, nil))
		r := s.ready(again)
		_, err = again.Wait(context.Background(), func(r *Row) bool { return r.InSync() && r.Identity == 1001 && r.State == regeneration.StateReady })
		require.NoError(t, err)
		require.Equal(t, app("real"), again.Row().Labels, "%v", r)
		again.Close()
		s.stop()
	})
}

// slowPolicy knows a number at once, as the repository does, but the policy
// maps hold it only later.
type slowPolicy struct {
	mu    sync.Mutex
	heard map[identity.NumericIdentity]bool
	maps  bool
}

func (p *slowPolicy) UpdateIdentities(_ context.Context, added, _ identity.IdentityMap) error {
	p.mu.Lock()
	known := true
	for n := range added {
		known = known && p.heard[n]
		p.heard[n] = true
	}
	p.mu.Unlock()
	if known {
		return nil
	}
	time.Sleep(time.Minute)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.maps = true
	return nil
}

func TestNobodyUsesANumberBeforeThePolicyMapsHoldIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &slowPolicy{heard: map[identity.NumericIdentity]bool{}}
		k := NewIdentityKeeper(slog.New(slog.DiscardHandler), newFakeIdentities(), p)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				time.Sleep(time.Duration(i) * time.Second)
				if _, err := k.allocate(t.Context(), app("same")); err != nil {
					t.Error(err)
				}
				p.mu.Lock()
				defer p.mu.Unlock()
				if !p.maps {
					t.Errorf("allocation %d returned early", i)
				}
			}()
		}
		wg.Wait()
		k.Close()
	})
}

func TestOldIdentityIsHeldUntilTheKernelHasTheNewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{}, 10)
		s := newScene(t, func(b *Build) { <-gate; succeed(b) })
		e := s.endpoint(1)
		require.NoError(t, e.SetLabels(app("a"), nil, nil))
		gate <- struct{}{}
		a := s.ready(e).Identity
		require.NoError(t, e.SetLabels(app("b"), nil, nil))
		synctest.Wait()
		b := e.Row().Identity
		require.Equal(t, map[identity.NumericIdentity]int{a: 1, b: 1}, s.ids.refs)
		gate <- struct{}{}
		s.ready(e)
		synctest.Wait()
		require.Equal(t, map[identity.NumericIdentity]int{b: 1}, s.ids.refs)
		require.Equal(t, map[identity.NumericIdentity]bool{b: true}, s.ids.known)
		e.BeginDelete("test")
		require.NoError(t, e.ReleaseIdentities(t.Context()))
		e.FinishDelete()
		synctest.Wait()
		require.Empty(t, s.ids.refs)
		require.Empty(t, s.ids.known)
		require.Equal(t, regeneration.StateDisconnected, e.Row().State)
		s.stop()
	})
}

func TestPolicyRevisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{}, 10)
		s := newScene(t, func(b *Build) { <-hold; succeed(b) })
		hit, miss := func(labels.LabelArray) bool { return true }, func(labels.LabelArray) bool { return false }
		e := s.endpoint(1)
		require.NoError(t, e.SetLabels(app("a"), nil, nil))
		require.NoError(t, e.WaitForPolicyRevision(t.Context(), 99), "nothing in force, nothing to wait for")
		hold <- struct{}{}
		require.EqualValues(t, 1, s.ready(e).PolicyRevision)

		require.False(t, e.PolicyChanged(miss, 2))
		require.EqualValues(t, 2, e.Row().PolicyRevision, "an unaffected endpoint only raises its revision")
		require.Equal(t, regeneration.StateReady, e.Row().State)

		require.True(t, e.PolicyChanged(hit, 3))
		require.True(t, e.PolicyChanged(miss, 4), "the policy in force is not the one that was asked about")
		require.EqualValues(t, 2, e.Row().PolicyRevision, "3 is still to be built")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		require.ErrorIs(t, e.WaitForPolicyRevision(ctx, 3), context.DeadlineExceeded)
		cancel()
		hold <- struct{}{}
		hold <- struct{}{} // 3 was being built when 4 came
		require.NoError(t, e.WaitForPolicyRevision(t.Context(), 4))
		require.EqualValues(t, 4, e.Row().PolicyRevision)
		e.Close()
		s.stop()
	})
}

// A relabelled endpoint takes part in policy changes under its old identity
// while the allocator is away.
func TestPolicyChangeDoesNotWaitForAnAllocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, nil)
		e := s.endpoint(1)
		require.NoError(t, e.SetLabels(app("a"), nil, nil))
		a := s.ready(e).Identity
		s.ids.mu.Lock()
		s.ids.hold = make(chan struct{})
		s.ids.mu.Unlock()
		require.NoError(t, e.SetLabels(app("b"), nil, nil))
		require.True(t, e.PolicyChanged(nil, 7))
		require.NoError(t, e.WaitForPolicyRevision(t.Context(), 7))
		require.Equal(t, regeneration.StateWaitingForIdentity, e.Row().State)
		require.Equal(t, a, e.Row().Realized.Identity)
		close(s.ids.hold)
		require.NotEqual(t, a, s.ready(e).Realized.Identity)
		e.Close()
		s.stop()
	})
}

func TestAFailedBuildGoesBackAndKeepsWhatIsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := true
		s := newScene(t, func(b *Build) {
			if _, _, ok := b.Endpoint.BeginBuild(); ok && fail {
				require.True(t, b.Endpoint.FailBuild(errors.New("verifier says no"), regeneration.LevelLoad, 5))
			}
		})
		e := s.endpoint(1)
		require.NoError(t, e.SetLabels(app("a"), nil, nil))
		synctest.Wait()
		r := e.Row()
		require.Equal(t, regeneration.StateWaitingToRegenerate, r.State)
		require.Equal(t, "verifier says no", r.Reason)
		require.Nil(t, r.Realized)
		require.False(t, r.Health().OK)
		e.Close()
		s.stop()
	})
}

func TestManyTurnsBuildsAndDeletions(t *testing.T) {
	s := newScene(t, nil)
	defer s.stop()
	var wg sync.WaitGroup
	for n := uint16(1); n <= 16; n++ {
		e := s.endpoint(n)
		for w := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range 30 {
					switch (i + w) % 4 {
					case 0:
						_ = e.SetLabels(app(fmt.Sprint(i%3)), nil, nil)
					case 1:
						e.Regenerate(regeneration.LevelPolicy, "storm")
					case 2:
						e.PolicyChanged(nil, uint64(i))
					case 3:
						if turn, err := e.LockAlive(); err == nil {
							turn.Row.InfoLabels = app(fmt.Sprint(i))
							turn.Unlock()
						} else if !errors.Is(err, ErrNotAlive) {
							t.Error(err)
						}
					}
				}
			}()
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			if n%2 == 0 {
				e.BeginDelete("storm")
				if err := e.WaitBuilds(context.Background()); err != nil {
					t.Error(err)
				}
				if err := e.RemoveRecord(); err != nil {
					t.Error(err)
				}
				_ = e.ReleaseIdentities(context.Background())
				e.FinishDelete()
			}
		}()
		t.Cleanup(e.Close)
	}
	wg.Wait()
	recs, bad, err := ReadAll(s.cfg.StateDir, "")
	require.NoError(t, err)
	require.Empty(t, bad)
	require.Len(t, recs, 8)
}

func TestStatusRingKeepsTheNewest(t *testing.T) {
	st := newStatus()
	for i := range 300 {
		st.add(StatusEntry{Message: fmt.Sprint(i)})
	}
	l := st.log()
	require.Len(t, l, 256)
	require.Equal(t, "44", l[0].Message)
	require.Equal(t, "299", l[255].Message)
}

func TestTimelineIsInTheOrderOfTheStations(t *testing.T) {
	s := newScene(t, nil)
	defer s.stop()
	e := s.endpoint(1)
	defer e.Close()
	e.Enter(regeneration.StationPlan, "why")(nil)
	e.Enter(regeneration.StationCreated, "")(nil)
	e.Enter(regeneration.StationLoad, "first build")(errors.New("boom"))
	tl := e.Timeline()
	require.Len(t, tl, 3)
	require.Equal(t, regeneration.StationCreated, tl[0].Station)
	require.Equal(t, "boom", tl[2].Error)
	passed, waiting := e.Progress()
	require.Equal(t, regeneration.StationPlan, passed)
	require.Equal(t, regeneration.StationLoad, waiting)
}

func TestAnEndpointThatIsNotReadyNamesWhatItWaitsFor(t *testing.T) {
	s := newScene(t, nil)
	defer s.stop()
	e := s.endpoint(1)
	defer e.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	text := func() string { return e.WaitReady(ctx).Error() }
	require.Contains(t, text(), "last station passed none, waiting for cni.add: ")
	e.Enter(regeneration.StationCreated, "")(nil)
	require.Contains(t, text(), "last station passed endpoint.created, waiting for metadata: ", "between two stations")
	e.Enter(regeneration.StationLoad, "")(errors.New("boom"))
	require.Contains(t, text(), "last station passed endpoint.created, waiting for load: ")
	require.Contains(t, (&NotReadyError{ID: 1, Passed: regeneration.StationEvent, Err: context.Canceled}).Error(), "waiting for nothing: ")
}

func TestKernelOrderSaysWhatBeatsSays(t *testing.T) {
	es := []policytypes.Entry{
		{Precedence: 0, Rank: 0}, {Precedence: 0, Rank: 9}, {Precedence: 5, Rank: 1},
		{Precedence: policytypes.MakePrecedence(0, 0, policytypes.ClassDeny), Rank: 0xFFFFFFFF},
		{Precedence: policytypes.MakePrecedence(0, 0, policytypes.ClassAllow), Rank: 2},
	}
	for _, a := range es {
		for _, b := range es {
			require.Equal(t, a.Beats(b), kernelEntry(a).Order > kernelEntry(b).Order)
		}
	}
	k := policytypes.Key{Identity: 1001, Direction: policytypes.Egress, Proto: types.ProtoTCP, Port: 8080, PortBits: 12}
	out := KernelLines(map[policytypes.Key]policytypes.Entry{k: {Rule: 3, Verdict: policytypes.Allow, ProxyPort: 10}})
	require.Len(t, out, 1)
	for _, line := range out {
		kk, ke := line.Key, line.Entry
		require.EqualValues(t, 1001, kk.Identity)
		require.EqualValues(t, 1, kk.Direction)
		require.EqualValues(t, 6, kk.Protocol)
		require.EqualValues(t, 8080, kk.Port)
		require.EqualValues(t, 12, kk.PortBits)
		require.False(t, ke.Deny)
		require.EqualValues(t, 3, ke.Rule)
		require.EqualValues(t, 10, ke.ProxyPort)
	}
	require.True(t, kernelEntry(policytypes.Entry{}).Deny, "what was never judged is denied")
	info := KernelInfo(plan.Layout{ID: 7, Identity: 9, IfIndex: 3}, 11)
	require.EqualValues(t, 11, info.PrefixIdentity)
}
