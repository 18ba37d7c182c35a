package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/types"
)

// Port is a declared port that the lab serves.
type Port struct {
	Proto types.Proto `json:"proto"`
	Port  uint16      `json:"port"`
}

// String prints "80/TCP".
func (p Port) String() string { return fmt.Sprintf("%d/%s", p.Port, p.Proto) }

// Pod is a pod to attach: one network namespace, one call of the plugin.
type Pod struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid"`
	IPs       []netip.Addr `json:"ips,omitempty"` // wanted addresses; empty: any
	Ports     []Port       `json:"ports,omitempty"`
}

// Key is namespace/name.
func (p Pod) Key() string { return p.Namespace + "/" + p.Name }

// Host is an unmanaged host outside, reached through the node's routing.
type Host struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
	Ports     []Port       `json:"ports,omitempty"`
}

// Config says what to build and with which binaries.
type Config struct {
	Dir        string   // everything of the lab is below it; must not exist or be empty
	SourceDir  string   // the folder of YAML that the agent watches
	Agent      string   // path of weir-agent
	Plugin     string   // path of weir-cni
	Server     []string // command that serves ports: it is given the lab's directory as last argument
	BPFRoot    string   // directory on a bpffs for this lab's agent
	AgentFlags []string // further flags for the agent
	IPv4, IPv6 bool
	Pods       []Pod
	Hosts      []Host
	NodeName   string
	NodeAddrs  []netip.Addr // from which the node talks to pods
	// Ready waits until the agent behind the socket is ready.
	Ready func(socket string) error
}

// Lab is a running lab, as its directory describes it.
type Lab struct {
	dir    string
	Record Record
}

// Record is what lab.json holds.
type Record struct {
	Version   int             `json:"version"`
	SourceDir string          `json:"sourceDir"`
	BPFRoot   string          `json:"bpfRoot"`
	Agent     string          `json:"agent"`
	Plugin    string          `json:"plugin"`
	NodeName  string          `json:"nodeName"`
	AgentArgs []string        `json:"agentArgs"`
	AgentPID  int             `json:"agentPid,omitempty"`
	ServerPID int             `json:"serverPid,omitempty"`
	Started   time.Time       `json:"started"`
	NodeAddrs []netip.Addr    `json:"nodeAddrs,omitempty"`
	Pods      []*AttachedPod  `json:"pods"`
	Hosts     []*AttachedHost `json:"hosts"`
}

// AttachedPod is a pod with the addresses that the plugin gave it.
type AttachedPod struct {
	Pod
	ContainerID string       `json:"containerId"`
	Netns       Netns        `json:"netns"`
	Addresses   []netip.Addr `json:"addresses,omitempty"`
}

// AttachedHost is an outside host with its namespace.
type AttachedHost struct {
	Host
	Netns Netns `json:"netns"`
}

// Open reads the lab in a directory.
func Open(dir string) (*Lab, error) {
	text, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no lab in %s; start one with: weir lab up FOLDER", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the lab's record: %w", err)
	}
	l := &Lab{dir: dir}
	if err := json.Unmarshal(text, &l.Record); err != nil {
		return nil, fmt.Errorf("reading %s/lab.json: %w; take the lab down with: weir lab down", dir, err)
	}
	return l, nil
}

// Dir is the lab's directory.
func (l *Lab) Dir() string { return l.dir }

// Socket is the path of the agent's REST socket.
func (l *Lab) Socket() string { return filepath.Join(l.dir, "run", "weir.sock") }

// Node is the namespace that the agent runs in.
func (l *Lab) Node() Netns { return Netns(filepath.Join(l.dir, "netns", "node")) }

// LogFile is where the agent's log goes.
func (l *Lab) LogFile() string { return filepath.Join(l.dir, "agent.log") }

// Pod finds an attached pod by namespace/name, or by name where it is unique.
func (l *Lab) Pod(key string) (*AttachedPod, error) {
	var found []*AttachedPod
	for _, p := range l.Record.Pods {
		if p.Key() == key || p.Name == key {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("no pod %q in the lab; it has %s", key, strings.Join(l.podKeys(), ", "))
	}
	return nil, fmt.Errorf("pod name %q is not unique; write NAMESPACE/NAME", key)
}

func (l *Lab) podKeys() []string {
	keys := make([]string, len(l.Record.Pods))
	for i, p := range l.Record.Pods {
		keys[i] = p.Key()
	}
	return keys
}

// save writes lab.json.
func (l *Lab) save() error {
	text, err := json.MarshalIndent(l.Record, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(l.dir, "lab.json"), append(text, '\n'), 0o644)
}
