package cmd

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// FuzzLoad reads a configuration file and one variable. An error names the file,
// the variable's source or the setting; what is taken can work and is read the
// same again.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{
		"mtu: 1400\ncluster-name: c\nlabels: [a, b]\nlease-expiry: 3m\n", "ipv4-pool: 10.0.0.0/24\nipv4-gateway: 10.0.0.9\nipv6-pool: fd00::/64\n",
		"event-buffer: 1e9", "labels: ['(']", "config: x", "mtu: {a: b}", "a: &a [*a]", "mtu: .nan", "run-dir: 1", "node-name: n\nmtu: 1e400",
	} {
		f.Add([]byte(s), "WEIR_MTU=1500")
		f.Add([]byte(s), "WEIR_LABELS=a,!b")
	}
	f.Fuzz(func(t *testing.T, text []byte, variable string) {
		if strings.HasPrefix(variable, "WEIR_CONFIG") {
			return // names another file
		}
		path := filepath.Join(t.TempDir(), "weir.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		load := func() (*Config, error) {
			return Load([]string{"--config", path, "--node-name", "n"}, []string{variable})
		}
		c, err := load()
		if err != nil {
			known := strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "environment: ")
			for _, name := range settings() {
				known = known || strings.Contains(err.Error(), name)
			}
			if !known {
				t.Fatalf("%v names neither a source nor a setting", err)
			}
			return
		}
		again, err := load()
		if err != nil || !reflect.DeepEqual(c.LabelFilter, again.LabelFilter) || c.pool != again.pool || c.MTU != again.MTU {
			t.Fatalf("read again: %+v and %+v, %v", c, again, err)
		}
		p := c.pool
		if !p.v4.IsValid() && !p.v6.IsValid() || p.v4.IsValid() && !p.v4.Contains(p.gw4) || p.v6.IsValid() && !p.v6.Contains(p.gw6) {
			t.Fatalf("pools %+v", p)
		}
		if !filepath.IsAbs(c.StateDir) || !filepath.IsAbs(c.SocketPath) || c.identity == nil || c.MTU < 576 || c.PolicyEntries < 16 || c.NodeName != "n" {
			t.Fatalf("%+v was taken", c)
		}
	})
}

// settings are the names of all flags.
func settings() (names []string) {
	(&Config{}).flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}
