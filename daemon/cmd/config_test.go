package cmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagsWinOverEnvironmentWinsOverFile(t *testing.T) {
	file := write(t, "mtu: 1400\ncluster-name: from-file\nnode-name: n1\nlabels: [a, b]\nlease-expiry: 3m\n")
	c, err := Load([]string{"--config", file, "--mtu", "1450"}, []string{"WEIR_MTU=1300", "WEIR_CLUSTER_NAME=from-env", "HOME=/root"})
	if err != nil {
		t.Fatal(err)
	}
	if c.MTU != 1450 || c.ClusterName != "from-env" || c.NodeName != "n1" || len(c.LabelFilter) != 2 || c.LeaseExpiry.Minutes() != 3 {
		t.Fatalf("%+v", c)
	}
	if c.StateDir != "/var/run/weir/state" || c.SocketPath != "/var/run/weir/weir.sock" {
		t.Fatalf("paths do not follow run-dir: %s %s", c.StateDir, c.SocketPath)
	}
	if c.pool.gw4.String() != "10.244.0.1" || c.pool.v6.IsValid() {
		t.Fatalf("pools: %+v", c.pool)
	}
}

func TestBadSettingsAreRefusedByName(t *testing.T) {
	for _, tt := range []struct{ name, file, args, env, want string }{
		{"an unknown key names the nearest", "cluster-nam: x\n", "", "", `setting "cluster-nam" is not known; nearest is "cluster-name"`},
		{"an unknown variable names the nearest", "", "", "WEIR_MTUU=3", `nearest is "mtu"`},
		{"a number that is none", "mtu: lots\n", "", "", "mtu"},
		{"a key twice", "mtu: 1500\nmtu: 1400\n", "", "", "mtu"},
		{"a map where a value belongs", "mtu:\n  a: b\n", "", "", "is a map"},
		{"a relative directory", "", "--run-dir=run", "", "run-dir"},
		{"a pool with host bits", "", "--ipv4-pool=10.0.0.1/24", "", "write 10.0.0.0/24"},
		{"a pool of the other family", "", "--ipv6-pool=10.0.0.0/24", "", "ipv6-pool"},
		{"a gateway outside the pool", "", "--ipv4-gateway=10.9.9.9", "", "ipv4-gateway"},
		{"a gateway without a pool", "", "--ipv6-gateway=fd00::1", "", "without ipv6-pool"},
		{"no pool at all", "", "--ipv4-pool=", "", "both empty"},
		{"an unknown mode", "", "--policy-enforcement=sometimes", "", "policy-enforcement"},
		{"an MTU too small for IPv6", "", "--mtu=1279 --ipv6-pool=fd00::/112", "", "1280"},
		{"a ring that is no power of two", "", "--event-buffer=5000", "", "event-buffer"},
		{"policies checked all the time", "", "--policy-check=0s", "", "policy-check"},
		{"policies larger than a map", "", "--policy-entries=1048577", "", "policy-entries: 1048577 is more than the 1048576"},
		{"a stray argument", "", "start", "", `"start" is not expected`},
		{"a socket path that is too long", "", "--socket-path=/" + strings.Repeat("x", 120), "", "107"},
		{"a log level", "", "--log-level=loud", "", "log-level"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := strings.Fields(tt.args)
			if tt.file != "" {
				args = append(args, "--config", write(t, tt.file))
			}
			_, err := Load(args, []string{tt.env})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
		})
	}
}
