package cmd

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/policymap"
)

// Config is everything that a person can set. It is read-only after Load.
// Every field has a flag; the same name is the key in the configuration file
// and, upper case with WEIR_ before it and _ for -, the environment variable.
type Config struct {
	ConfigFile string
	ClusterName,
	NodeName string
	RunDir,
	StateDir,
	DataDir,
	SocketPath,
	SocketGroup,
	BPFRoot,
	SourceDir,
	CNIConfDir string
	IPv4Pool, IPv4Gateway,
	IPv6Pool, IPv6Gateway string
	MTU          int
	Enforcement  string
	LabelFilter  []string
	Parallel     int
	Clang        string
	RouteTable   int
	LeaseExpiry  time.Duration
	CNIWait      time.Duration
	PodNamespace string
	PolicyCheck  time.Duration
	NodeCheck    time.Duration
	AllowPoolOverlap,
	AcceptForward bool
	CTEntries,
	PolicyEntries,
	IPCacheEntries,
	EventBytes uint32
	LogLevel, LogFormat string

	pool     pools
	identity *labels.Filter
}

// pools holds the parsed addresses; invalid where a family is off.
type pools struct {
	v4, v6   netip.Prefix
	gw4, gw6 netip.Addr
}

// flags declares every setting with its default; parsing writes into c.
func (c *Config) flags() *pflag.FlagSet {
	host, _ := os.Hostname()
	fs := pflag.NewFlagSet("weir-agent", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {} // Execute prints the help
	fs.StringVar(&c.ConfigFile, "config", "", "YAML file of settings; environment and flags win over it")
	fs.StringVar(&c.ClusterName, "cluster-name", "default", "name of the cluster, part of every pod's labels")
	fs.StringVar(&c.NodeName, "node-name", host, "name of this node, as its Node object has it")
	fs.StringVar(&c.RunDir, "run-dir", "/var/run/weir", "directory for the socket, the lock and the queue of deletions")
	fs.StringVar(&c.StateDir, "state-dir", "", "directory for what dies with a boot: endpoints, leases, loaded programs (default RUN-DIR/state)")
	fs.StringVar(&c.DataDir, "data-dir", "/var/lib/weir", "durable directory for what must survive a reboot: policies and settings of the API, last good versions of sources, identity numbers")
	fs.StringVar(&c.SocketPath, "socket-path", "", "unix socket of the REST API (default RUN-DIR/weir.sock)")
	fs.StringVar(&c.SocketGroup, "socket-group", "", "group that may also use the socket; empty: root only")
	fs.StringVar(&c.BPFRoot, "bpf-root", "/sys/fs/bpf/weir", "directory on a bpffs for maps and programs")
	fs.StringVar(&c.SourceDir, "source-dir", "", "folder of Kubernetes YAML to watch, with the folders below it; empty: none")
	fs.StringVar(&c.CNIConfDir, "cni-conf-dir", "", "where to write the CNI configuration once ready; empty: nowhere")
	fs.StringVar(&c.IPv4Pool, "ipv4-pool", "10.244.0.0/24", "IPv4 prefix of this node's pods; empty: no IPv4")
	fs.StringVar(&c.IPv4Gateway, "ipv4-gateway", "", "address of the node in the pool (default its first)")
	fs.StringVar(&c.IPv6Pool, "ipv6-pool", "", "IPv6 prefix of this node's pods; empty: no IPv6")
	fs.StringVar(&c.IPv6Gateway, "ipv6-gateway", "", "address of the node in the pool (default its first)")
	fs.IntVar(&c.MTU, "mtu", 1500, "MTU of pod interfaces, bytes")
	fs.StringVar(&c.Enforcement, "policy-enforcement", "default", "which pods are held to policies: default (those that a policy selects), always (all) or never (none)")
	fs.StringSliceVar(&c.LabelFilter, "labels", nil, "label prefixes that make identities, \"!\" before one excludes it (default: the built-in list)")
	fs.IntVar(&c.Parallel, "regenerations-in-parallel", max(2, runtime.NumCPU()), "endpoints that may be built at the same time")
	fs.StringVar(&c.Clang, "clang", "clang-19", "compiler for shapes that are not built in")
	fs.IntVar(&c.RouteTable, "route-table", 254, "routing table for the routes to pods")
	fs.DurationVar(&c.LeaseExpiry, "lease-expiry", 10*time.Minute, "how long an address stays leased when its ADD does not finish")
	fs.DurationVar(&c.CNIWait, "cni-wait", 30*time.Second, "how long a CNI ADD waits for an agent that is starting")
	fs.StringVar(&c.PodNamespace, "default-pod-namespace", "default", "namespace of containers whose runtime names none (podman, nerdctl)")
	fs.Uint32Var(&c.CTEntries, "conntrack-entries", 65536, "connections per address family; may be changed at any restart")
	fs.Uint32Var(&c.PolicyEntries, "policy-entries", 1<<18, "entries of one policy map; may be changed at any restart")
	fs.DurationVar(&c.PolicyCheck, "policy-check", time.Minute, "how often the policy maps and the ipcache are compared with what they should hold, and mended")
	fs.DurationVar(&c.NodeCheck, "node-check", 3*time.Second, "how often what the agent put on the node (settings, addresses, routes, CNI configuration) is looked at, and put back")
	fs.BoolVar(&c.AllowPoolOverlap, "allow-pool-overlap", false, "start although a pool takes in the network of the default gateway's link; addresses of the node, its router and known nodes are not leased")
	fs.BoolVar(&c.AcceptForward, "accept-forward", false, "keep rules in the packet filter's forward chains that drop by default, so that they accept packets from and to the pools; undone by cleanup")
	fs.Uint32Var(&c.IPCacheEntries, "ipcache-entries", 512000, "prefixes in the ipcache map; may be changed at any restart")
	fs.Uint32Var(&c.EventBytes, "event-buffer", 8<<20, "bytes of the event ring, a power of two; may be changed at any restart")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error; at info every change leaves a line (msg=Change)")
	fs.StringVar(&c.LogFormat, "log-format", "text", "text or json")
	return fs
}

// Load reads the settings: defaults, then the file, then the environment, then
// the flags. Unknown keys are refused with the nearest known one.
func Load(args []string, environ []string) (*Config, error) {
	c := &Config{}
	fs := c.flags()
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, err
		}
		return nil, fmt.Errorf("%w; see weir-agent --help", err)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("argument %q is not expected; settings are flags, see weir-agent --help", fs.Arg(0))
	}
	byFlag := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { byFlag[f.Name] = true })
	set := func(name, value, from string) error {
		f := fs.Lookup(name)
		if f == nil {
			return fmt.Errorf("%s: setting %q is not known; nearest is %q", from, name, nearest(name, fs))
		}
		if byFlag[name] {
			return nil
		}
		if err := replace(f, value); err != nil {
			return fmt.Errorf("%s: %s: %w", from, name, err)
		}
		return nil
	}
	env := map[string]string{}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		if rest, ok := strings.CutPrefix(k, "WEIR_"); ok && !notSettings[k] {
			env[strings.ToLower(strings.ReplaceAll(rest, "_", "-"))] = v
		}
	}
	if v, ok := env["config"]; ok && !byFlag["config"] {
		c.ConfigFile = v
	}
	if err := readFile(c.ConfigFile, set); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(mapKeys(env)) {
		if err := set(name, env[name], "environment"); err != nil {
			return nil, err
		}
	}
	return c, c.validate()
}

// notSettings are variables with the prefix that belong to tests and tools.
var notSettings = map[string]bool{"WEIR_KERNEL_TESTS": true, "WEIR_SOAK": true, "WEIR_BPFFS": true}

// replace sets a flag; a list given by a stronger source replaces the weaker one's.
func replace(f *pflag.Flag, value string) error {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		if err := list.Replace(nil); err != nil {
			return err
		}
	}
	return f.Value.Set(value)
}

// readFile applies the settings of a YAML file; an empty path does nothing.
func readFile(path string, set func(name, value, from string) error) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the configuration file: %w", err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		return fmt.Errorf("%s: %w; write one \"setting: value\" a line", path, err)
	}
	for _, name := range slices.Sorted(mapKeys(values)) {
		text, err := scalar(values[name])
		if err != nil {
			return fmt.Errorf("%s: %s: %w", path, name, err)
		}
		if err := set(name, text, path); err != nil {
			return err
		}
	}
	return nil
}

// scalar prints a YAML value in the form that a flag reads.
func scalar(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case map[string]any:
		return "", errors.New("is a map; give a single value or a list of strings")
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			s, ok := e.(string)
			if !ok {
				return "", fmt.Errorf("element %d is not a string", i)
			}
			parts[i] = s
		}
		return strings.Join(parts, ","), nil
	case float64:
		return fmt.Sprintf("%.0f", v), nil
	}
	return fmt.Sprint(v), nil
}

// namespaceName is a label of RFC 1123, as names of namespaces are.
var namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// validate fills what depends on other settings and refuses what cannot work.
func (c *Config) validate() error {
	if c.StateDir == "" {
		c.StateDir = filepath.Join(c.RunDir, "state")
	}
	if c.SocketPath == "" {
		c.SocketPath = filepath.Join(c.RunDir, "weir.sock")
	}
	for _, dir := range [][2]string{{"run-dir", c.RunDir}, {"state-dir", c.StateDir}, {"data-dir", c.DataDir}, {"bpf-root", c.BPFRoot}, {"socket-path", c.SocketPath}} {
		if !filepath.IsAbs(dir[1]) {
			return fmt.Errorf("%s: %q is not an absolute path", dir[0], dir[1])
		}
	}
	if len(c.SocketPath) > 107 {
		return fmt.Errorf("socket-path: %q is longer than the 107 bytes that a unix socket may have (unix(7))", c.SocketPath)
	}
	if c.NodeName == "" {
		return errors.New("node-name: is empty and the host has no name; give one")
	}
	if c.ClusterName == "" {
		return errors.New("cluster-name: is empty; give a name such as \"default\"")
	}
	if !slices.Contains([]string{"default", "always", "never"}, c.Enforcement) {
		return fmt.Errorf("policy-enforcement: %q is not known; give default, always or never", c.Enforcement)
	}
	if c.MTU < 576 || c.MTU > 65535 || c.IPv6Pool != "" && c.MTU < 1280 {
		return fmt.Errorf("mtu: %d is outside 576 to 65535 (IPv6 needs at least 1280, RFC 8200 section 5)", c.MTU)
	}
	if c.Parallel < 1 {
		return fmt.Errorf("regenerations-in-parallel: %d is less than 1", c.Parallel)
	}
	if c.LeaseExpiry < time.Second {
		return fmt.Errorf("lease-expiry: %s is shorter than a second", c.LeaseExpiry)
	}
	if c.CNIWait < time.Second || c.CNIWait > 10*time.Minute {
		return fmt.Errorf("cni-wait: %s is outside 1s to 10m", c.CNIWait)
	}
	if !namespaceName.MatchString(c.PodNamespace) {
		return fmt.Errorf("default-pod-namespace: %q is no name of a namespace; give up to 63 small letters, digits and '-'", c.PodNamespace)
	}
	for name, d := range map[string]time.Duration{"policy-check": c.PolicyCheck, "node-check": c.NodeCheck} {
		if d < 100*time.Millisecond {
			return fmt.Errorf("%s: %s is shorter than 100ms", name, d)
		}
	}
	if c.EventBytes < 4096 || c.EventBytes&(c.EventBytes-1) != 0 {
		return fmt.Errorf("event-buffer: %d is not a power of two of at least 4096", c.EventBytes)
	}
	if least := min(c.CTEntries, c.PolicyEntries, c.IPCacheEntries); least < 16 {
		return fmt.Errorf("conntrack-entries, policy-entries, ipcache-entries: %d is too few; give at least 16", least)
	}
	if c.PolicyEntries > policymap.MaxEntries {
		return fmt.Errorf("policy-entries: %d is more than the %d that a policy map can hold", c.PolicyEntries, policymap.MaxEntries)
	}
	if c.RouteTable < 1 {
		return fmt.Errorf("route-table: %d is not a table; 254 is main", c.RouteTable)
	}
	return errors.Join(c.validateLog(), c.validatePools(), c.validateLabels())
}

func (c *Config) validateLog() error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel) {
		return fmt.Errorf("log-level: %q is not known; give debug, info, warn or error", c.LogLevel)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("log-format: %q is not known; give text or json", c.LogFormat)
	}
	return nil
}

func (c *Config) validatePools() (err error) {
	if c.IPv4Pool == "" && c.IPv6Pool == "" {
		return errors.New("ipv4-pool and ipv6-pool are both empty; give at least one prefix")
	}
	if c.pool.v4, c.pool.gw4, err = pool("ipv4", c.IPv4Pool, c.IPv4Gateway, netip.Addr.Is4); err != nil {
		return err
	}
	c.pool.v6, c.pool.gw6, err = pool("ipv6", c.IPv6Pool, c.IPv6Gateway, netip.Addr.Is6)
	return err
}

func (c *Config) validateLabels() (err error) {
	c.identity = labels.DefaultFilter()
	if len(c.LabelFilter) > 0 {
		if c.identity, err = labels.ParseFilter(c.LabelFilter); err != nil {
			return fmt.Errorf("labels: %w", err)
		}
	}
	return nil
}

// pool parses one family's prefix and gateway.
func pool(family, prefix, gateway string, is func(netip.Addr) bool) (netip.Prefix, netip.Addr, error) {
	if prefix == "" {
		if gateway != "" {
			return netip.Prefix{}, netip.Addr{}, fmt.Errorf("%s-gateway: given without %s-pool", family, family)
		}
		return netip.Prefix{}, netip.Addr{}, nil
	}
	p, err := netip.ParsePrefix(prefix)
	if err != nil || !is(p.Addr()) {
		return p, netip.Addr{}, fmt.Errorf("%s-pool: %q is not a prefix of that family, such as 10.244.0.0/24 or fd00:244::/112", family, prefix)
	}
	if p != p.Masked() {
		return p, netip.Addr{}, fmt.Errorf("%s-pool: %q has bits behind the prefix length; write %s", family, prefix, p.Masked())
	}
	gw := p.Addr().Next()
	if gateway != "" {
		if gw, err = netip.ParseAddr(gateway); err != nil || !p.Contains(gw) {
			return p, gw, fmt.Errorf("%s-gateway: %q is not an address in %s", family, gateway, p)
		}
	}
	return p, gw, nil
}
