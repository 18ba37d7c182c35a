package endpoint

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

func TestQueueMergesAndKeepsTheOrder(t *testing.T) {
	q := NewBuildQueue(3)
	a, b := &Endpoint{ID: 1}, &Endpoint{ID: 2}
	q.Enqueue(a, regeneration.LevelPolicy, "one")
	q.Enqueue(b, regeneration.LevelPolicy, "other")
	q.Enqueue(a, regeneration.LevelLoad, "two")
	q.Enqueue(a, regeneration.LevelPolicy, "one")
	first, err := q.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, a, first.Endpoint)
	require.Equal(t, regeneration.LevelLoad, first.Level)
	require.Equal(t, []string{"one", "two"}, first.Reasons)
	second, err := q.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, b, second.Endpoint)
	q.Done(first)
	q.Done(second)
	waiting, running := q.Load()
	require.Zero(t, waiting+running)
}

func TestQueueBuildsAnEndpointOnceAtATimeAndDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewBuildQueue(2)
		a, b := &Endpoint{ID: 1}, &Endpoint{ID: 2}
		q.Enqueue(a, regeneration.LevelPolicy, "")
		first, err := q.Next(t.Context())
		require.NoError(t, err)
		q.Enqueue(a, regeneration.LevelPolicy, "again")
		q.Enqueue(b, regeneration.LevelPolicy, "")
		second, err := q.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, b, second.Endpoint, "it overtakes the endpoint that is being built")
		q.Done(second)

		got := make(chan *Build)
		go func() { n, _ := q.Next(t.Context()); got <- n }()
		synctest.Wait()
		select {
		case <-got:
			t.Fatal("a second build of one endpoint was handed out")
		default:
		}
		q.Done(first)
		third := <-got
		require.Equal(t, a, third.Endpoint)
		q.Done(third)
	})
}

func TestQueueKeepsTheLimit(t *testing.T) {
	q := NewBuildQueue(3)
	var running, most, done atomic.Int32
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				b, err := q.Next(ctx)
				if err != nil {
					return
				}
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				runtime.Gosched()
				running.Add(-1)
				q.Done(b)
				if done.Add(1) == 200 {
					cancel()
				}
			}
		}()
	}
	for i := range 200 {
		q.Enqueue(&Endpoint{ID: uint16(i)}, regeneration.LevelPolicy, "")
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int32(3))
	require.EqualValues(t, 200, done.Load())
	require.GreaterOrEqual(t, DefaultParallel(), 2)
}

func TestQueueCancelDropsTheQueuedAndWaitsForTheRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewBuildQueue(2)
		a := &Endpoint{ID: 1}
		require.NoError(t, q.Cancel(t.Context(), a), "nothing to cancel")
		q.Enqueue(a, regeneration.LevelPolicy, "")
		b, err := q.Next(t.Context())
		require.NoError(t, err)
		q.Enqueue(a, regeneration.LevelPolicy, "again")
		done := make(chan error)
		go func() { done <- q.Cancel(t.Context(), a) }()
		synctest.Wait()
		require.ErrorIs(t, b.Context.Err(), context.Canceled)
		select {
		case <-done:
			t.Fatal("Cancel did not wait for the running build")
		default:
		}
		q.Done(b)
		require.NoError(t, <-done)
		waiting, running := q.Load()
		require.Zero(t, waiting+running)
	})
}

func TestQueueShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewBuildQueue(1)
		q.Enqueue(&Endpoint{ID: 1}, regeneration.LevelPolicy, "")
		b, err := q.Next(t.Context())
		require.NoError(t, err)
		got := make(chan error)
		go func() { _, err := q.Next(t.Context()); got <- err }()
		synctest.Wait()
		q.Close()
		require.ErrorIs(t, <-got, ErrQueueClosed)
		require.Error(t, b.Context.Err())
		q.Done(b)
		q.Enqueue(&Endpoint{ID: 2}, regeneration.LevelPolicy, "")
		waiting, _ := q.Load()
		require.Zero(t, waiting)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = NewBuildQueue(1).Next(ctx)
		require.ErrorIs(t, err, context.Canceled)
	})
}
