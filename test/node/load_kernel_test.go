package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// addTime is what an ADD has while an agent starts.
const addTime = 30 * time.Second

// uniquePods is a node whose pods churn-N have labels of their own.
func uniquePods(t *testing.T, root string, n int) *box.Box {
	var pods strings.Builder
	for i := range n {
		pods.WriteString(box.PodYAML("x", fmt.Sprintf("churn-%d", i), fmt.Sprintf("own=%d", i), ""))
	}
	return box.Start(t, box.Options{BPFRoot: root, Files: map[string]string{"pods.yaml": pods.String(), "web.yaml": webOnly}})
}

// atOnce calls fn for every pod, at most n at a time, and returns the failures.
func atOnce(n int, pods []*lab.AttachedPod, fn func(*lab.AttachedPod) error) (failed []error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	places := make(chan struct{}, n)
	for _, p := range pods {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if err := fn(p); err != nil {
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// Many pods come at once while a policy changes all the time: what makes their
// endpoints build again fails no ADD.
func TestN22AddsSucceedWhileAPolicyChangesAllTheTime(t *testing.T) {
	env := testutils.Kernel(t)
	n := times(60, 250)
	b := uniquePods(t, env.BPFRoot, n)
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- i
				return
			case <-time.After(80 * time.Millisecond):
			}
			b.Write("moving.yaml", strings.Replace(strings.Replace(webOnly, "name: web", "name: moving", 1), "pod: web", fmt.Sprintf("own: \"%d\"", i%n), 1))
		}
	}()
	pods := prepareAll(t, b, "churn", n)
	failed := atOnce(20, pods, func(p *lab.AttachedPod) error { return b.Attach(t.Context(), p) })
	close(stop)
	if changes := <-done; len(failed) > 0 || changes < 10 {
		t.Fatalf("%d of %d ADDs failed over %d changes, the first: %v", len(failed), n, changes, append(failed, nil)[0])
	}
	b.Eventually("all endpoints ready", allReady(t, b, n))
}

// An agent that is killed again and again while pods come and go fails no ADD that has
// the time to wait for the next agent.
func TestN23AddsSucceedWhileTheAgentIsKilledAgainAndAgain(t *testing.T) {
	env := testutils.Kernel(t)
	n, kills := times(60, 300), times(4, 20)
	b := uniquePods(t, env.BPFRoot, n)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	before := quiet(t, b)
	pods := prepareAll(t, b, "churn", n)
	killed := make(chan error, 1)
	go func() {
		for range kills {
			time.Sleep(time.Duration(200+random.IntN(600)) * time.Millisecond)
			if err := b.KillAgent(); err != nil {
				killed <- err
				return
			}
			if err := b.StartAgent(); err != nil {
				killed <- err
				return
			}
			if err := box.WaitReady(b.Socket()); err != nil {
				killed <- err
				return
			}
		}
		killed <- nil
	}()
	failed := atOnce(8, pods, func(p *lab.AttachedPod) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*addTime)
		defer cancel()
		if err := b.Attach(ctx, p); err != nil {
			return err
		}
		return b.Detach(t.Context(), p)
	})
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	if len(failed) > 0 {
		t.Fatalf("%d of %d failed over %d kills, the first: %v", len(failed), n, kills, failed[0])
	}
	removeAll(t, b, pods)
	settles(t, b, before, fmt.Sprintf("after %d kills", kills))
}
