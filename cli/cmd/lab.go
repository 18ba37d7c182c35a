package cmd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/cli/folder"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/client"
	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/version"
)

// labOptions are the flags of the lab commands.
type labOptions struct {
	dir, bpffs, binDir, enforcement string
	agentFlags                      []string
	timeout                         time.Duration
}

const labNode = "lab"

func (a *app) lab() *cobra.Command {
	o := &labOptions{}
	up := &cobra.Command{Use: "up FOLDER", Short: "start an agent in a namespace and attach every pod of the folder", Args: exactArgs(1),
		Long: "FOLDER holds Kubernetes YAML: pods, namespaces, policies. FOLDER/lab/outside.yaml may list unmanaged hosts.",
		RunE: func(c *cobra.Command, args []string) error {
			l, err := a.labUp(c.Context(), o, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(a.out, "lab in %s: %d pods, %d outside hosts\nask its agent with: weir --socket %s status\n", l.Dir(), len(l.Record.Pods), len(l.Record.Hosts), l.Socket())
			return nil
		}}
	up.Flags().StringVar(&o.enforcement, "policy-enforcement", "default", "default, always or never")
	up.Flags().StringVar(&o.binDir, "bin-dir", "", "where weir-agent and weir-cni are (default: beside this binary)")
	up.Flags().StringVar(&o.bpffs, "bpffs", "/sys/fs/bpf", "a mounted bpffs")
	up.Flags().StringArrayVar(&o.agentFlags, "agent-flag", nil, "a further flag for the agent, such as --mtu=1400")
	probe := &cobra.Command{Use: "probe", Short: "send real packets for the whole matrix and print the truth table", Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error { return a.labProbe(c.Context(), o) }}
	probe.Flags().DurationVar(&o.timeout, "timeout", 700*time.Millisecond, "how long one probe waits for its answer")
	exec := &cobra.Command{Use: "exec [flags] POD -- COMMAND...", DisableFlagsInUseLine: true, Short: "run a command inside a pod's or host's namespace", Args: atLeastArgs(2),
		Long: "POD is NAMESPACE/NAME, or NAME where it is unique, the name of an outside host, or node for the node itself. What\n" +
			"follows it belongs to the command. Exit code: that of the command, or 128 and the number of the signal that ended it.",
		RunE: func(c *cobra.Command, args []string) error {
			if args[1] == "--" {
				args = slices.Delete(args, 1, 2)
			}
			return a.labExec(c.Context(), o, args[0], args[1:])
		}}
	exec.Flags().SetInterspersed(false)
	down := &cobra.Command{Use: "down", Short: "take the lab away", Args: exactArgs(0), RunE: func(c *cobra.Command, _ []string) error {
		l, err := lab.Open(o.dir)
		if err != nil {
			return err
		}
		return l.Down(c.Context())
	}}
	serve := &cobra.Command{Use: "serve DIR", Hidden: true, Args: exactArgs(1), RunE: func(c *cobra.Command, args []string) error {
		l, err := lab.Open(args[0])
		if err != nil {
			return err
		}
		return l.Serve(c.Context())
	}}
	g := group("lab", "a node in a box: real agent, real plugin, real packets (root)", up, probe, exec, down, serve, a.labDemo(o))
	g.PersistentFlags().StringVar(&o.dir, "dir", "/run/weir-lab", "directory of the lab; another one is another lab")
	return g
}

// labUp builds the lab of a folder.
func (a *app) labUp(ctx context.Context, o *labOptions, dir string) (*lab.Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a lab makes network namespaces and loads programs: run it as root")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	cfg := lab.Config{
		Dir: o.dir, SourceDir: dir, NodeName: labNode,
		Ready:   func(socket string) error { return client.WaitReady(ctx, socket, version.String()) },
		BPFRoot: filepath.Join(o.bpffs, "weir-lab"+strings.ReplaceAll(o.dir, "/", "-")),
	}
	cfg.NodeAddrs = []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("fd00:77::1")} // of the pools below
	cfg.AgentFlags = append([]string{"--policy-enforcement=" + o.enforcement, "--ipv4-pool=10.77.0.0/24", "--ipv6-pool=fd00:77::/112"}, o.agentFlags...)
	if err := labBinaries(&cfg, o.binDir); err != nil {
		return nil, err
	}
	if cfg.Pods, err = labPods(dir); err != nil {
		return nil, err
	}
	if cfg.Hosts, err = labHosts(filepath.Join(dir, "lab", "outside.yaml")); err != nil {
		return nil, err
	}
	return lab.Up(ctx, cfg)
}

// labBinaries finds the agent and the plugin beside this binary.
func labBinaries(cfg *lab.Config, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if dir == "" {
		dir = filepath.Dir(self)
	}
	cfg.Agent, cfg.Plugin = filepath.Join(dir, "weir-agent"), filepath.Join(dir, "weir-cni")
	for _, b := range []string{cfg.Agent, cfg.Plugin} {
		if _, err := os.Stat(b); err != nil {
			return fmt.Errorf("%w; build the binaries with: make build", err)
		}
	}
	cfg.Server = []string{self, "lab", "serve"}
	return nil
}

// labPods lists the folder's pods that have a network of their own.
func labPods(folder string) ([]lab.Pod, error) {
	snap, problems, err := filesource.Load([]string{folder}, filesource.Options{ClusterName: clusterName, NodeName: labNode})
	if err != nil {
		return nil, err
	}
	if problems = filesource.Errors(problems); len(problems) > 0 {
		return nil, fmt.Errorf("%s (and %d more); see: weir policy validate %s", problems[0], len(problems)-1, folder)
	}
	var pods []lab.Pod
	for _, key := range snap.PodOrder {
		p := snap.Pods[key]
		if !p.OwnsAddresses() || p.Node != "" && p.Node != labNode {
			continue
		}
		pod := lab.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, IPs: p.IPs}
		for _, port := range snap.Ports[key] {
			pod.Ports = append(pod.Ports, lab.Port{Proto: port.Proto, Port: port.Port})
		}
		pods = append(pods, pod)
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("%s holds no pod to attach", folder)
	}
	return pods, nil
}

// labHosts reads the outside hosts; a missing file means none.
func labHosts(path string) ([]lab.Host, error) {
	read, err := folder.Outside(path)
	if err != nil {
		return nil, err
	}
	var hosts []lab.Host
	for _, h := range read {
		host := lab.Host{Name: h.Name, Addresses: h.Addrs}
		for _, p := range h.Ports {
			host.Ports = append(host.Ports, lab.Port{Proto: p.Proto, Port: p.Port})
		}
		hosts = append(hosts, host)
	}
	return hosts, nil
}

// labExec runs a command in a namespace of the lab with this process's terminal.
func (a *app) labExec(ctx context.Context, o *labOptions, name string, command []string) error {
	l, err := lab.Open(o.dir)
	if err != nil {
		return err
	}
	where, err := l.Source(name)
	if err != nil {
		return err
	}
	cmd := osexec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.out, a.errOut
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	return a.ended(ctx, command[0], where.Netns.Do(cmd.Run))
}

// ended turns the end of a command into weir's own, and says what a signal did.
func (a *app) ended(ctx context.Context, name string, err error) error {
	var exited *osexec.ExitError
	code := 0
	if errors.As(err, &exited) {
		code = exited.ExitCode()
		if status, ok := exited.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = 128 + int(status.Signal())
			fmt.Fprintf(a.errOut, "weir: %s was ended by a signal: %s\n", name, status.Signal())
		}
	}
	switch {
	case code != 0:
		return exitError(code)
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(a.errOut, "weir: interrupted; %s was told to end\n", name)
		return exitError(128 + int(unix.SIGTERM))
	}
	return err
}

// labProbe prints the tables of a running lab and each denied cell's rule.
func (a *app) labProbe(ctx context.Context, o *labOptions) error {
	l, err := lab.Open(o.dir)
	if err != nil {
		return err
	}
	p, err := a.probe(ctx, l, o.timeout)
	if err != nil {
		return err
	}
	return a.show(p.Tables, func() error { return p.Write(a.out) })
}

// probe follows the agent's events while the packets are sent.
func (a *app) probe(ctx context.Context, l *lab.Lab, timeout time.Duration) (*probe.Outcome, error) {
	agent := client.New(l.Socket(), version.String())
	defer agent.Close()
	return probe.Matrix(ctx, l, agent, timeout)
}

// beside is a second lab of the same folder beside the first.
func (o *labOptions) beside(suffix string) *labOptions {
	c := *o
	c.dir += suffix
	return &c
}
