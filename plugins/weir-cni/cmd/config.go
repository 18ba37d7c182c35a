package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	weirtypes "github.com/weirnet/weir/pkg/types"
)

// Defaults of the network configuration.
const (
	defaultRunDir  = "/var/run/weir"
	socketName     = "weir.sock" // below the run directory
	defaultTimeout = 60 * time.Second
	defaultWait    = 30 * time.Second
)

// NetConf is the plugin's part of a network configuration. Keys that it does
// not name are left to the runtime and to other plugins, as the CNI spec asks.
type NetConf struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`

	Socket         string `json:"socket"`         // of the agent; RunDir/weir.sock where empty
	RunDir         string `json:"runDir"`         // holds the delete queue
	LogFile        string `json:"logFile"`        // empty: standard error
	LogLevel       string `json:"logLevel"`       // debug, info, warn, error
	MTU            int    `json:"mtu"`            // bytes; 0: what the agent says
	Pool           string `json:"pool"`           // empty: the agent's default
	TimeoutSeconds int    `json:"timeoutSeconds"` // of a verb; 0: 60
	// AgentWaitSeconds is how long ADD waits for an agent that is starting; 0: 30.
	AgentWaitSeconds int `json:"agentWaitSeconds"`

	IPAM       json.RawMessage `json:"ipam"`
	PrevResult json.RawMessage `json:"prevResult"`

	Args struct {
		CNI struct {
			Labels labelList `json:"labels"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		IPs []string `json:"ips"`
		MAC string   `json:"mac"`
	} `json:"runtimeConfig"`

	// What is still there of this network, and its name of before CNI 1.1 was settled.
	ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	Attachments      json.RawMessage `json:"cni.dev/attachments"`

	requested []netip.Addr  // from RuntimeConfig.IPs, and IP of CNI_ARGS
	mac       weirtypes.MAC // from RuntimeConfig.MAC, or MAC of CNI_ARGS; zero: any
}

// labelList reads the labels convention of the CNI project: a list of key and
// value pairs. A plain object is taken too.
type labelList map[string]string

// UnmarshalJSON reads either form; a key given twice is an error.
func (l *labelList) UnmarshalJSON(b []byte) error {
	var object map[string]string
	if json.Unmarshal(b, &object) == nil {
		*l = object
		return nil
	}
	var pairs []struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	if err := json.Unmarshal(b, &pairs); err != nil {
		return errors.New("args.cni.labels must be a list of objects with key and value")
	}
	out := labelList{}
	for i, p := range pairs {
		if p.Key == "" {
			return fmt.Errorf("args.cni.labels[%d].key is empty", i)
		}
		if _, twice := out[p.Key]; twice {
			return fmt.Errorf("args.cni.labels: the key %q is given twice", p.Key)
		}
		out[p.Key] = p.Value
	}
	*l = out
	return nil
}

// parseConfig reads and checks a network configuration. Errors name the field.
func parseConfig(stdin []byte) (*NetConf, error) {
	c := &NetConf{}
	err := json.Unmarshal(stdin, c)
	if err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, badConfig("field %s: a JSON %s cannot be a %s", wrong.Field, wrong.Value, wrong.Type)
		}
		return nil, types.NewError(types.ErrDecodingFailure, "read the network configuration: "+err.Error(), "mend the JSON of the CNI configuration")
	}
	if c.RunDir == "" {
		c.RunDir = defaultRunDir
	}
	if c.Socket == "" {
		c.Socket = filepath.Join(c.RunDir, socketName)
	}
	for _, f := range []struct{ field, path string }{{"runDir", c.RunDir}, {"socket", c.Socket}, {"logFile", c.LogFile}} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			return nil, badConfig("field %s: %q is no absolute path", f.field, f.path)
		}
	}
	if c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535) {
		return nil, badConfig("field mtu: %d is not within 68 to 65535", c.MTU)
	}
	if c.TimeoutSeconds < 0 || c.TimeoutSeconds > 600 {
		return nil, badConfig("field timeoutSeconds: %d is not within 1 to 600", c.TimeoutSeconds)
	}
	if c.AgentWaitSeconds < 0 || c.AgentWaitSeconds > 600 {
		return nil, badConfig("field agentWaitSeconds: %d is not within 1 to 600", c.AgentWaitSeconds)
	}
	if err = c.checkIPAM(); err != nil {
		return nil, err
	}
	if _, err = parseLevel(c.LogLevel); err != nil {
		return nil, badConfig("field logLevel: %v", err)
	}
	if c.mac, err = parseMAC(c.RuntimeConfig.MAC); err != nil {
		return nil, badConfig("field runtimeConfig.mac: %v", err)
	}
	return c, c.parseIPs()
}

// checkIPAM refuses a delegated plugin: the agent leases the addresses.
func (c *NetConf) checkIPAM() error {
	if len(c.IPAM) == 0 || string(c.IPAM) == "null" {
		return nil
	}
	var ipam map[string]any
	if err := json.Unmarshal(c.IPAM, &ipam); err != nil {
		return badConfig("field ipam: must be an object, or left out")
	}
	if t, ok := ipam["type"]; ok && t != "" {
		return badConfig("field ipam.type: %v is not used, the agent leases the addresses from its pools; remove ipam", t)
	}
	return nil
}

// parseIPs reads the ips capability: addresses with or without a prefix length.
func (c *NetConf) parseIPs() error {
	seen := map[bool]string{}
	for i, text := range c.RuntimeConfig.IPs {
		a, err := parseAddr(text)
		if err != nil {
			return badConfig("field runtimeConfig.ips[%d]: %v", i, err)
		}
		if other, twice := seen[a.Is4()]; twice {
			return badConfig("field runtimeConfig.ips[%d]: %s and %s are of one family; ask for one of each at the most", i, other, text)
		}
		seen[a.Is4()] = text
		c.requested = append(c.requested, a)
	}
	return nil
}

// parseAddr reads an address with or without a prefix length.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		var p netip.Prefix
		p, err = netip.ParsePrefix(text)
		a = p.Addr()
	}
	if err != nil || a.Zone() != "" {
		return a, fmt.Errorf("%q is no IP address", text)
	}
	return a.Unmap(), nil
}

// parseMAC reads the hardware address of one interface; zero for none.
func parseMAC(text string) (m weirtypes.MAC, err error) {
	if text == "" {
		return m, nil
	}
	if m, err = weirtypes.ParseMAC(text); err != nil {
		return m, err
	}
	if m.IsZero() || m[0]&1 != 0 {
		return m, fmt.Errorf("%q is not the address of one interface", text)
	}
	return m, nil
}

// wish takes the addresses over that CNI_ARGS asks for; they must not contradict
// runtimeConfig, in which a runtime may say the same again.
func (c *NetConf) wish(a *podArgs) error {
	refuse := func(format string, args ...any) error {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: "+fmt.Sprintf(format, args...), "give one address of each family at the most, and each one way")
	}
	if a.IP != "" {
		want, err := parseAddr(string(a.IP))
		if err != nil {
			return refuse("IP: %v", err)
		}
		given := false
		for _, other := range c.requested {
			if other.Is4() == want.Is4() && other != want {
				return refuse("IP %s and runtimeConfig.ips %s are of one family", want, other)
			}
			given = given || other == want
		}
		if !given {
			c.requested = append(c.requested, want)
		}
	}
	mac, err := parseMAC(string(a.MAC))
	if err != nil {
		return refuse("MAC: %v", err)
	}
	if !mac.IsZero() && !c.mac.IsZero() && mac != c.mac {
		return refuse("MAC %s and runtimeConfig.mac %s differ", mac, c.mac)
	}
	if !mac.IsZero() {
		c.mac = mac
	}
	return nil
}

// hasPrevResult reports whether another plugin ran before in the list.
func (c *NetConf) hasPrevResult() bool {
	return len(c.PrevResult) > 0 && string(c.PrevResult) != "null"
}

// timeout is how long a verb may take.
func (c *NetConf) timeout() time.Duration {
	if c.TimeoutSeconds == 0 {
		return defaultTimeout
	}
	return time.Duration(c.TimeoutSeconds) * time.Second
}

// wait is how long ADD waits for an agent that is starting.
func (c *NetConf) wait() time.Duration {
	if c.AgentWaitSeconds == 0 {
		return defaultWait
	}
	return time.Duration(c.AgentWaitSeconds) * time.Second
}

func badConfig(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "network configuration: "+fmt.Sprintf(format, args...), "mend the CNI configuration and try again")
}

// podArgs is what CNI_ARGS says about the pod.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAME               types.UnmarshallableString //nolint:revive // names of the convention
	K8S_POD_NAMESPACE          types.UnmarshallableString
	K8S_POD_UID                types.UnmarshallableString
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString
	IP                         types.UnmarshallableString
	MAC                        types.UnmarshallableString
}

// parseArgs reads CNI_ARGS. An unknown key is an error unless IgnoreUnknown is
// true (CNI spec, section "Parameters"; the convention's names are Kubernetes').
func parseArgs(s string) (*podArgs, error) {
	a := &podArgs{}
	if err := types.LoadArgs(s, a); err != nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: "+err.Error(), "set IgnoreUnknown=1 if the runtime passes further arguments")
	}
	return a, nil
}

func isTrue(s string) bool { return strings.EqualFold(s, "true") || s == "1" }
