package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/client"
	"github.com/weirnet/weir/pkg/lab"
)

// node is a lab whose events are read while it runs.
type node struct {
	*lab.Lab
	agent  *client.Client
	cancel context.CancelFunc
	done   chan error
}

// benchPods are the objects of the two pods: one without would have no identity
// of its own and reach nobody.
const benchPods = `{apiVersion: v1, kind: Pod, metadata: {namespace: bench, name: client, labels: {app: client}}, spec: {containers: []}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: bench, name: server, labels: {app: server}}, spec: {containers: []}}
`

// newNode starts a node that knows the objects of two pods.
func newNode(ctx context.Context, o options, name string, flags ...string) (*node, error) {
	return startNode(ctx, o, name, map[string]string{"pods.yaml": benchPods}, nil, flags...)
}

// startNode starts a lab without pods and follows its events, so that the figures
// include a ring that is really drained.
func startNode(ctx context.Context, o options, name string, files map[string]string, hosts []lab.Host, flags ...string) (*node, error) {
	dir := filepath.Join(o.state, name)
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o755); err != nil {
		return nil, err
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(source, file), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	l, err := lab.Up(ctx, lab.Config{
		Dir: filepath.Join(dir, "lab"), SourceDir: source, BPFRoot: "/sys/fs/bpf/" + filepath.Base(o.state) + "-" + name, NodeName: "bench",
		Agent: filepath.Join(o.dir, "weir-agent"), Plugin: filepath.Join(o.dir, "weir-cni"),
		AgentFlags: flags, Hosts: hosts,
		Ready: func(socket string) error { return client.WaitReady(ctx, socket, "bench") },
	})
	if err != nil {
		return nil, err
	}
	n := &node{Lab: l, agent: client.New(l.Socket(), "bench"), done: make(chan error, 1)}
	ctx, n.cancel = context.WithCancel(ctx)
	go func() {
		n.done <- n.agent.Monitor(ctx, gen.GetMonitorParams{}, nil, func(gen.Event) error { return nil })
	}()
	return n, nil
}

func (n *node) close() error {
	n.cancel()
	err := <-n.done
	n.agent.Close()
	return errors.Join(err, n.Down(context.Background()))
}

// measureMemory reports the process and, apart from it, the maps.
func (n *node) measureMemory(ctx context.Context, r *report) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Record.AgentPID))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.ParseFloat(strings.Fields(rest + " ?")[0], 64)
	if err != nil {
		return fmt.Errorf("reading the agent's memory: %w", err)
	}
	r.add(line{What: fmt.Sprintf("agent RSS, %d endpoints", len(n.Record.Pods)), Value: kib / 1024, Unit: "MiB", Aim: 60})
	maps, err := n.agent.Maps(ctx)
	if err != nil {
		return err
	}
	r.add(line{What: "kernel memory of maps", Value: float64(maps.TotalBytes) / (1 << 20), Unit: "MiB"})
	return nil
}
