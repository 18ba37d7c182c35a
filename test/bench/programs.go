package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/api/v1/gen"
	sources "github.com/weirnet/weir/bpf"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/loader"
	"github.com/weirnet/weir/pkg/types"
)

// How often things are done in measurePrograms.
const (
	misses = 7
	hits   = 500
	loads  = 200
)

// measurePrograms reports what finding, compiling and loading an object cost,
// with a loader of its own over the maps of a running agent.
func measurePrograms(ctx context.Context, o options, r *report) (err error) {
	n, err := newNode(ctx, o, "programs", "--ipv4-pool=10.99.0.0/16", "--ipv6-pool=fd00:99::/112")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	maps, err := pinnedMaps(bpf.Root{Path: n.Record.BPFRoot})
	if err != nil {
		return err
	}
	defer func() {
		for _, m := range maps {
			err = errors.Join(err, m.Close())
		}
	}()
	root, err := bpf.OpenRoot(n.Record.BPFRoot + "-own")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root.Path)) }()
	cfg := loader.Config{Root: root, Sources: sources.Sources, Maps: maps, Logger: slog.New(slog.DiscardHandler)}
	return timeLoader(ctx, o, cfg, r)
}

// pinnedMaps opens the maps of an agent by their names in C.
func pinnedMaps(root bpf.Root) (map[string]*ebpf.Map, error) {
	pins, err := filepath.Glob(root.Map("*"))
	if err != nil {
		return nil, err
	}
	out := map[string]*ebpf.Map{}
	for _, pin := range pins {
		m, err := ebpf.LoadPinnedMap(pin, nil)
		if err != nil {
			return nil, fmt.Errorf("opening map %s: %w", pin, err)
		}
		out[filepath.Base(pin)] = m
	}
	return out, nil
}

// timeLoader measures misses with a fresh loader each, which has neither a
// built-in object nor one on disk, then hits and loads with the last of them.
func timeLoader(ctx context.Context, o options, cfg loader.Config, r *report) error {
	shape := loader.Shape{IPv4: true, IPv6: true}
	var miss, hit, load []float64
	var l *loader.Loader
	for i := range misses {
		cfg.StateDir = filepath.Join(o.state, "loader", fmt.Sprint(i))
		fresh, err := loader.New(cfg)
		if err != nil {
			return err
		}
		defer fresh.Close()
		ms, err := timed(func() error { return fresh.Fetch(ctx, shape) })
		if err != nil {
			return err
		}
		l, miss = fresh, append(miss, ms)
	}
	for range hits {
		ms, err := timed(func() error { return l.Fetch(ctx, shape) })
		if err != nil {
			return err
		}
		hit = append(hit, ms)
	}
	if err := l.Prepare(ctx, shape); err != nil {
		return err
	}
	for i := range loads {
		var p loader.Programs
		ms, err := timed(func() (err error) {
			p, err = l.Load(ctx, shape, loader.Endpoint{
				ID: uint16(i + 1), Identity: uint32(70000 + i), IfIndex: uint32(i + 2),
				MAC: types.MAC(podMACs[0]), NodeMAC: types.MAC(nodeMAC), IPv4: floorA, IPv6: netip.MustParseAddr("fd00:99::2"),
			})
			return err
		})
		if err != nil {
			return err
		}
		if err := p.Close(); err != nil {
			return err
		}
		load = append(load, ms)
	}
	r.add(line{What: "fetchOrCompile miss", Value: quantile(miss, 0.5), Unit: "ms", Note: "by clang, without kernel load; " + spread(miss)})
	r.add(line{What: "fetchOrCompile hit", Value: quantile(hit, 0.5), Unit: "ms", Note: "without kernel load; " + spread(hit)})
	r.add(line{What: "fetchOrCompile hit", Value: quantile(hit, 0.5) / quantile(miss, 0.5), Unit: "x", Baseline: "a miss", Aim: 0.02})
	r.add(line{What: "load of an endpoint p50", Value: quantile(load, 0.5), Unit: "ms", Aim: 1, Note: "find, substitute, verify both entry programs; " + spread(load)})
	return nil
}

// timed returns how long a call took, in milliseconds.
func timed(call func() error) (float64, error) {
	start := time.Now()
	err := call()
	return time.Since(start).Seconds() * 1e3, err
}

// verifiedAim is the most instructions that the verifier may look at in one program.
const verifiedAim = 50000

// measureVerified reports what the verifier looked at in the bodies and in the
// entry programs of the first endpoint.
func (n *node) measureVerified(ctx context.Context, r *report) error {
	pins, err := filepath.Glob(filepath.Join(n.Record.BPFRoot, "shapes", "*", "[ft]*")) // from, to
	if err != nil {
		return err
	}
	for _, pin := range pins {
		p, err := ebpf.LoadPinnedProgram(pin, nil)
		if err != nil {
			return fmt.Errorf("opening %s: %w", pin, err)
		}
		if err := addVerified(r, "body "+filepath.Base(pin), p); err != nil {
			return err
		}
	}
	endpoints, err := n.agent.Endpoints(ctx, nil, []gen.EndpointState{gen.EndpointReady})
	if err != nil {
		return err
	}
	if len(pins) == 0 || len(endpoints) == 0 {
		return fmt.Errorf("%d programs are pinned and %d endpoints ready, want some of both", len(pins), len(endpoints))
	}
	var ids attach.Attached
	err = n.Node().Do(func() (err error) {
		ids, err = attach.Query(endpoints[0].Interface.HostIndex)
		return err
	})
	if err != nil {
		return err
	}
	for _, entry := range []struct {
		name string
		id   uint32
	}{{"entry from", ids.From}, {"entry to", ids.To}} {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(entry.id))
		if err != nil {
			return fmt.Errorf("opening the program %s: %w", entry.name, err)
		}
		if err := addVerified(r, entry.name, p); err != nil {
			return err
		}
	}
	return nil
}

// addVerified adds a line for a program and closes it.
func addVerified(r *report, name string, p *ebpf.Program) error {
	info, err := p.Info()
	if err := errors.Join(err, p.Close()); err != nil {
		return fmt.Errorf("asking about the program %s: %w", name, err)
	}
	n, ok := info.VerifiedInstructions()
	if !ok {
		return errors.New("this kernel does not tell verified instructions; it needs Linux 5.16")
	}
	r.add(line{What: "verified instructions, " + name, Value: float64(n), Aim: verifiedAim})
	return nil
}
