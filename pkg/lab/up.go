package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Up builds the lab. On an error everything that was built is taken down again.
func Up(ctx context.Context, cfg Config) (*Lab, error) {
	if entries, err := os.ReadDir(cfg.Dir); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("directory %s is not empty; if a lab is there take it down with: weir lab down --dir %s", cfg.Dir, cfg.Dir)
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, err
	}
	l := &Lab{dir: cfg.Dir, Record: Record{
		Version: 1, SourceDir: cfg.SourceDir, BPFRoot: cfg.BPFRoot, Agent: cfg.Agent, Plugin: cfg.Plugin,
		NodeName: cfg.NodeName, NodeAddrs: cfg.NodeAddrs, Started: time.Now(),
	}}
	if err := l.build(ctx, cfg); err != nil {
		tail := l.logTail(8)
		return nil, errors.Join(fmt.Errorf("%w%s", err, tail), l.Down(context.WithoutCancel(ctx)))
	}
	return l, nil
}

func (l *Lab) build(ctx context.Context, cfg Config) error {
	if err := l.save(); err != nil {
		return err
	}
	if _, err := NewNetns(string(l.Node())); err != nil {
		return err
	}
	for i, h := range cfg.Hosts {
		if err := l.AddHost(h, i); err != nil {
			return err
		}
	}
	l.Record.AgentArgs = l.agentArgs(cfg)
	if err := l.StartAgent(); err != nil {
		return err
	}
	if err := cfg.Ready(l.Socket()); err != nil {
		return l.notReady(err)
	}
	for _, p := range cfg.Pods {
		if _, err := l.AddPod(ctx, p); err != nil {
			return err
		}
	}
	if len(cfg.Server) == 0 {
		return nil
	}
	return l.startServer(cfg.Server)
}

// agentArgs are the flags that put everything of the agent below the lab's directory.
func (l *Lab) agentArgs(cfg Config) []string {
	args := []string{
		"--run-dir", filepath.Join(l.dir, "run"), "--data-dir", filepath.Join(l.dir, "data"),
		"--bpf-root", cfg.BPFRoot,
		"--node-name", cfg.NodeName,
		"--source-dir", cfg.SourceDir,
		"--cni-conf-dir", filepath.Join(l.dir, "cni"),
	}
	return append(args, cfg.AgentFlags...)
}

// Down takes the lab away: pods by the plugin, agent, servers, namespaces,
// pins, directory. It goes on after a failure and returns all of them.
func (l *Lab) Down(ctx context.Context) error {
	var errs []error
	for _, p := range append([]*AttachedPod(nil), l.Record.Pods...) {
		if err := l.DelPod(ctx, p.Key()); err != nil {
			errs = append(errs, err)
		}
	}
	if err := l.stopServer(); err != nil {
		errs = append(errs, err)
	}
	if err := l.StopAgent(); err != nil {
		errs = append(errs, err)
	}
	if err := l.cleanAgent(ctx); err != nil {
		errs = append(errs, err)
	}
	files, _ := filepath.Glob(filepath.Join(l.dir, "netns", "*"))
	for _, f := range files {
		if err := Netns(f).Remove(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := os.RemoveAll(l.Record.BPFRoot); l.Record.BPFRoot != "" && err != nil {
		errs = append(errs, fmt.Errorf("removing pins: %w", err))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return os.RemoveAll(l.dir)
}
