package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weirnet/weir/pkg/atomicfile"
)

// ConflistName is the file that the container runtime finds. Its presence makes
// the node ready, so it is written once the API is served and the agent is ready.
const ConflistName = "10-weir.conflist"

// Conflist is what the CNI plugin must know before it can ask the agent.
type Conflist struct {
	Dir     string        // the runtime's folder of network configurations, usually /etc/cni/net.d
	Socket  string        // of the API
	RunDir  string        // holds the delete queue
	LogFile string        // of the plugin; empty: standard error only
	Pool    string        // address pool; empty: the agent's default
	MTU     int           // bytes; 0: the agent's
	Wait    time.Duration // for an agent that is starting; 0: what the plugin takes by itself
}

// Path is the file's path.
func (c Conflist) Path() string { return filepath.Join(c.Dir, ConflistName) }

// Write puts the file in place, whole or not at all. An equal file is left alone;
// was says what was there else: "removed", or "changed".
func (c Conflist) Write() (was string, err error) {
	type plugin struct {
		Type         string          `json:"type"`
		Socket       string          `json:"socket"`
		RunDir       string          `json:"runDir"`
		LogFile      string          `json:"logFile,omitempty"`
		Pool         string          `json:"pool,omitempty"`
		MTU          int             `json:"mtu,omitempty"`
		Wait         int             `json:"agentWaitSeconds,omitempty"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	// A runtime of before CNI 1.1 reads cniVersion, a newer one takes the
	// highest of cniVersions that it knows (CNI spec 1.1, section 1).
	list := struct {
		CNIVersion  string   `json:"cniVersion"`
		CNIVersions []string `json:"cniVersions"`
		Name        string   `json:"name"`
		Plugins     []plugin `json:"plugins"`
	}{"1.0.0", []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, "weir", []plugin{{
		Type: "weir-cni", Socket: c.Socket, RunDir: c.RunDir, LogFile: c.LogFile, Pool: c.Pool, MTU: c.MTU, Wait: int(c.Wait / time.Second),
		Capabilities: map[string]bool{"ips": true, "mac": true},
	}}}
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the CNI configuration: %w", err)
	}
	text = append(text, '\n')
	have, err := os.ReadFile(c.Path())
	switch {
	case err == nil && bytes.Equal(have, text):
		return "", nil
	case errors.Is(err, fs.ErrNotExist):
		was = "removed"
	default:
		was = "changed"
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of CNI configurations: %w", err)
	}
	// The temporary name does not end like a configuration, so no runtime reads it half written.
	if err := atomicfile.WriteSync(c.Path(), text, 0o600); err != nil {
		return "", fmt.Errorf("write the CNI configuration %s: %w", c.Path(), err)
	}
	return was, nil
}

// Remove takes the file away; one that is not there is no error.
func (c Conflist) Remove() error {
	if err := os.Remove(c.Path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI configuration: %w", err)
	}
	return nil
}
