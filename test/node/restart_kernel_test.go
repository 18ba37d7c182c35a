package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestLongFlowsLiveThroughKillsAndDeniedOnesNeverStart(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	sink := newSink(t, web.Netns, udp9)
	stopHammer := hammer(t, stranger.Netns, netip.AddrPortFrom(web.Addresses[0], udp9))
	var flows []func() (int, error)
	for _, a := range web.Addresses {
		flows = append(flows, talk(t, client.Netns, netip.AddrPortFrom(a, 80)))
	}
	for range 5 {
		if err := b.KillAgent(); err != nil {
			t.Fatal(err)
		}
		restart(t, b)
		b.Eventually("all endpoints ready", allReady(t, b, 3))
	}
	for _, stop := range flows {
		if words, err := stop(); err != nil || words < 10 {
			t.Errorf("an allowed flow over five kills: %d words, %v", words, err)
		}
	}
	if sent, got := stopHammer(), sink.close(); sent == 0 || got != 0 {
		t.Errorf("%d of %d denied datagrams arrived over five kills", got, sent)
	}
}

func TestAPolicyMadeWhileNoAgentRunsIsEnforcedAfterTheStart(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	if err := b.KillAgent(); err != nil {
		t.Fatal(err)
	}
	b.Write("web.yaml", strings.Replace(webOnly, "role: client", "role: other", 1))
	restart(t, b)
	b.Eventually("all endpoints ready", allReady(t, b, 3))
	if _, any := reaches(b, client, web, http80); any {
		t.Error("the client still reaches the web pod, which the new policy denies")
	}
	if all, _ := reaches(b, stranger, web, http80); !all {
		t.Error("the stranger does not reach the web pod, which the new policy allows")
	}
}

// Agents that die at any point of ADDs and DELs leave every pod attached or gone (B35).
func TestB35KillsDuringAddsLeaveNothingHalfDone(t *testing.T) {
	env := testutils.Kernel(t)
	b := manyPods(t, env.BPFRoot, "--cni-wait=1s")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	before := quiet(t, b)
	var old []*lab.AttachedPod
	failed, attached := 0, 0
	one := time.Now()
	warm := prepare(t, b, "churn", churned-1)
	if err := errors.Join(b.Attach(t.Context(), warm), b.Detach(t.Context(), warm)); err != nil {
		t.Fatal(err)
	}
	removeAll(t, b, []*lab.AttachedPod{warm})
	span := 2 * time.Since(one) // within which an agent dies: some ADDs have ended by then, some have not
	for round := range 15 {
		fresh := make([]*lab.AttachedPod, 4)
		for i := range fresh {
			fresh[i] = prepare(t, b, "churn", (round*4+i)%churned)
		}
		errs := make([]error, len(fresh))
		var wg sync.WaitGroup
		for i, p := range fresh {
			wg.Go(func() { errs[i] = b.Attach(t.Context(), p) })
		}
		delErrs := make([]error, len(old))
		for i, p := range old {
			wg.Go(func() { delErrs[i] = b.Detach(t.Context(), p) })
		}
		time.Sleep(time.Duration(random.Int64N(int64(span))))
		if err := unix.Kill(b.Record.AgentPID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if err := b.KillAgent(); err != nil { // waits until it is gone
			t.Fatal(err)
		}
		for i, err := range delErrs {
			if err != nil {
				// A runtime repeats a DEL that failed.
				t.Logf("round %d: DEL of %s while the agent dies: %v", round, old[i].Key(), err)
			}
		}
		restart(t, b)
		for _, p := range old {
			if err := b.Detach(t.Context(), p); err != nil {
				t.Fatalf("round %d: DEL again: %v", round, err)
			}
		}
		removeAll(t, b, old)
		old = nil
		for i, p := range fresh {
			if errs[i] == nil {
				attached++
				old = append(old, p)
				continue
			}
			failed++
			if err := b.Detach(t.Context(), p); err != nil {
				t.Fatalf("round %d: DEL after the failed ADD: %v", round, err)
			}
			removeAll(t, b, []*lab.AttachedPod{p})
		}
		b.Eventually(fmt.Sprintf("round %d: the %d attached pods are ready, all else is gone", round, len(old)), func() bool {
			eps, err := b.Agent.Endpoints(t.Context(), nil, nil)
			return err == nil && len(eps) == len(old) && allReady(t, b, len(old))()
		})
	}
	if err := each(old, func(p *lab.AttachedPod) error { return b.Detach(t.Context(), p) }); err != nil {
		t.Fatal(err)
	}
	removeAll(t, b, old)
	t.Logf("%d ADDs finished, %d did not", attached, failed)
	if attached == 0 || failed == 0 {
		t.Error("no ADD was interrupted, or all were: the test proves nothing")
	}
	settles(t, b, before, "after 15 kills")
}

// Every label set keeps its number over kills, also when the agent is ready
// before all endpoints could have asked for theirs.
func TestManyLabelSetsKeepTheirNumbersOverKills(t *testing.T) {
	env := testutils.Kernel(t)
	b := manyPods(t, env.BPFRoot)
	pods := prepareAll(t, b, "churn", 40)
	if err := each(pods, func(p *lab.AttachedPod) error { return b.Attach(t.Context(), p) }); err != nil {
		t.Fatal(err)
	}
	b.Eventually("all endpoints ready", allReady(t, b, len(pods)))
	before := facts(t, b)
	for round := range 3 {
		if err := b.KillAgent(); err != nil {
			t.Fatal(err)
		}
		restart(t, b)
		b.Eventually("all endpoints ready", allReady(t, b, len(pods)))
		if after := facts(t, b); after != before {
			t.Fatalf("round %d: before\n%safter\n%s", round, before, after)
		}
	}
}

func TestB36APodThatWentWhileNoAgentRanIsForgotten(t *testing.T) {
	env := testutils.Kernel(t)
	b, _, client, stranger := trio(t, env)
	if err := b.KillAgent(); err != nil {
		t.Fatal(err)
	}
	gone := []*lab.AttachedPod{client, stranger}
	removeAll(t, b, gone) // the namespace takes the link with it
	b.Eventually("the links are gone", func() bool {
		_, out := run(t, b, nodeCommand(t, "ip", "-o", "link"))
		return strings.Count(out, "\n") <= 2 // lo and the web pod's
	})
	for range 2 {
		restart(t, b)
		b.Eventually("only the web pod is left", func() bool {
			s, err := take(t, b)
			return err == nil && s["endpoints"] == 1 && s["leases"] == 1 && s["state folders"] == 1
		})
		if err := b.KillAgent(); err != nil {
			t.Fatal(err)
		}
	}
	restart(t, b)
}

func TestB38AKilledAddAndADelLeaveNothing(t *testing.T) {
	env := testutils.Kernel(t)
	b := manyPods(t, env.BPFRoot)
	before := quiet(t, b)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	killed := 0
	for i := range 30 {
		p := prepare(t, b, "churn", i)
		cmd := pluginCommand(t, b, "ADD", p.ContainerID, string(p.Netns), p.Key())
		if err := b.Node().Do(cmd.Start); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
		_ = cmd.Process.Kill() // it may have ended
		if cmd.Wait() != nil {
			killed++
		}
		if code, out := run(t, b, pluginCommand(t, b, "DEL", p.ContainerID, string(p.Netns), p.Key())); code != 0 {
			t.Errorf("round %d: DEL after a killed ADD: exit code %d: %s", i, code, out)
		}
		removeAll(t, b, []*lab.AttachedPod{p})
	}
	t.Logf("%d of 30 ADDs were killed", killed)
	if killed == 0 {
		t.Error("no ADD was killed: the test proves nothing")
	}
	settles(t, b, before, "after 30 killed ADDs")
}
