package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// pluginTimeout bounds one call of the plugin.
const pluginTimeout = 60 * time.Second

// AddPod makes a namespace and attaches it through the plugin.
func (l *Lab) AddPod(ctx context.Context, p Pod) (*AttachedPod, error) {
	a, err := l.PreparePod(p)
	if err != nil {
		return nil, err
	}
	if err := l.Attach(ctx, a); err != nil {
		return nil, err
	}
	return a, l.save()
}

// PreparePod makes the namespace of a pod and leaves it without a network.
func (l *Lab) PreparePod(p Pod) (*AttachedPod, error) {
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	a := &AttachedPod{Pod: p, ContainerID: hex.EncodeToString(id)}
	ns, err := NewNetns(filepath.Join(l.dir, "netns", "pod-"+a.ContainerID))
	if err != nil {
		return nil, err
	}
	a.Netns = ns
	l.Record.Pods = append(l.Record.Pods, a)
	return a, l.save()
}

// Attach calls the plugin's ADD for a pod whose namespace is there.
func (l *Lab) Attach(ctx context.Context, a *AttachedPod) error {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	var res *types100.Result
	err := l.plugin(a, func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
		r, err := cni.AddNetworkList(ctx, list, rt)
		if err != nil {
			return err
		}
		res, err = types100.NewResultFromResult(r)
		return err
	})
	if err != nil {
		return fmt.Errorf("attaching pod %s: %w", a.Key(), err)
	}
	a.Addresses = nil
	for _, ip := range res.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return fmt.Errorf("attaching pod %s: the plugin returned address %v", a.Key(), ip.Address)
		}
		a.Addresses = append(a.Addresses, addr.Unmap())
	}
	return nil
}

// Detach calls the plugin's DEL and leaves the namespace.
func (l *Lab) Detach(ctx context.Context, a *AttachedPod) error {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	err := l.plugin(a, func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
		return cni.DelNetworkList(ctx, list, rt)
	})
	if err != nil {
		return fmt.Errorf("detaching pod %s: %w", a.Key(), err)
	}
	return nil
}

// DelPod detaches a pod and removes its namespace.
func (l *Lab) DelPod(ctx context.Context, key string) error {
	a, err := l.Pod(key)
	if err != nil {
		return err
	}
	if err := l.Detach(ctx, a); err != nil {
		return err
	}
	if err := a.Netns.Remove(); err != nil {
		return err
	}
	l.Record.Pods = slices.DeleteFunc(l.Record.Pods, func(p *AttachedPod) bool { return p == a })
	return l.save()
}

// plugin calls fn inside the node's namespace with the list that the agent wrote.
func (l *Lab) plugin(a *AttachedPod, fn func(*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) error) error {
	list, err := l.conflist()
	if err != nil {
		return err
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(l.Record.Plugin)}, filepath.Join(l.dir, "cni-cache"), nil)
	rt := &libcni.RuntimeConf{
		ContainerID: a.ContainerID, NetNS: string(a.Netns), IfName: "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", a.Namespace}, {"K8S_POD_NAME", a.Name},
			{"K8S_POD_UID", a.UID}, {"K8S_POD_INFRA_CONTAINER_ID", a.ContainerID},
		},
	}
	if len(a.IPs) > 0 {
		ips := make([]string, len(a.IPs))
		for i, ip := range a.IPs {
			ips[i] = ip.String()
		}
		rt.CapabilityArgs = map[string]any{"ips": ips}
	}
	return l.Node().Do(func() error { return fn(cni, list, rt) })
}

// PluginConfig is the plugin's own configuration, as a runtime gives it on the
// standard input (CNI spec 1.1, section 1): the plugin's entry in the agent's
// list with the list's name and version 1.0.0.
func (l *Lab) PluginConfig() ([]byte, error) {
	list, err := l.conflist()
	if err != nil {
		return nil, err
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("the agent's CNI configuration lists no plugin")
	}
	one, err := libcni.InjectConf(list.Plugins[0], map[string]any{"name": list.Name, "cniVersion": "1.0.0"})
	if err != nil {
		return nil, fmt.Errorf("reading the agent's CNI configuration: %w", err)
	}
	return one.Bytes, nil
}

// conflist reads what the agent wrote when it became ready, and keeps a copy
// so that DEL works after the agent took its file away.
func (l *Lab) conflist() (*libcni.NetworkConfigList, error) {
	kept := filepath.Join(l.dir, "kept.conflist")
	files, _ := filepath.Glob(filepath.Join(l.dir, "cni", "*.conflist"))
	from := kept
	if len(files) > 0 {
		from = files[0]
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return nil, fmt.Errorf("reading the agent's CNI configuration: %w; is the agent ready?", err)
	}
	if !json.Valid(text) {
		return nil, fmt.Errorf("the agent's CNI configuration %s is not JSON", from)
	}
	if from != kept {
		if err := os.WriteFile(kept, text, 0o644); err != nil {
			return nil, err
		}
	}
	return libcni.ConfListFromBytes(text)
}
