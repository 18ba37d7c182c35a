package sysctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// filterTimeout bounds one call of nft or iptables.
const filterTimeout = 5 * time.Second

// Forward is what the node's packet filter does to forwarded packets that no rule names.
type Forward string

// The answers of ForwardPolicy.
const (
	ForwardAccept  Forward = "accept"  // no filter drops them by default
	ForwardDrop    Forward = "drop"    // a filter does; a rule of it may still accept a pod's
	ForwardUnknown Forward = "unknown" // nft and iptables are not installed
)

// tools are the commands that are asked; tests put others in their place.
type tools struct {
	nft      string
	iptables []string // one per family
}

func systemTools() tools {
	return tools{nft: "nft", iptables: []string{"iptables", "ip6tables"}}
}

// ForwardPolicy looks for a chain that drops forwarded packets by default, in
// the network namespace of the calling thread, and says where it is. It
// changes nothing. nft shows what iptables-nft has made, too; iptables is asked
// only without nft. Neither tool installed: ForwardUnknown and no error.
func ForwardPolicy(ctx context.Context) (Forward, string, error) {
	return systemTools().forwardPolicy(ctx)
}

func (t tools) forwardPolicy(ctx context.Context) (Forward, string, error) {
	ctx, cancel := context.WithTimeout(ctx, filterTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, t.nft, "-j", "list", "ruleset").Output()
	if err == nil {
		return readNft(out)
	}
	if !errors.Is(err, exec.ErrNotFound) {
		return ForwardUnknown, "", fmt.Errorf("ask nft for the packet filter: %w", explain(err))
	}
	asked := false
	for _, tool := range t.iptables {
		out, err := exec.CommandContext(ctx, tool, "-S", "FORWARD").Output()
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			return ForwardUnknown, "", fmt.Errorf("ask %s for the packet filter: %w", tool, explain(err))
		}
		asked = true
		if strings.HasPrefix(string(out), "-P FORWARD DROP") {
			return ForwardDrop, tool + " chain FORWARD", nil
		}
	}
	if !asked {
		return ForwardUnknown, "", nil
	}
	return ForwardAccept, "", nil
}

// explain adds the first line that the tool wrote to standard error.
func explain(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if line, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n"); line != "" {
			return fmt.Errorf("%w: %s", err, line)
		}
	}
	return err
}

// readNft reads the form of libnftables-json(5).
func readNft(data []byte) (Forward, string, error) {
	var ruleset struct {
		Nftables []struct {
			Chain *struct {
				Family, Table, Name, Type, Hook, Policy string
			}
		}
	}
	if err := json.Unmarshal(data, &ruleset); err != nil {
		return ForwardUnknown, "", fmt.Errorf("read nft's list of rules: %w", err)
	}
	for _, item := range ruleset.Nftables {
		c := item.Chain
		ip := c != nil && (c.Family == "ip" || c.Family == "ip6" || c.Family == "inet")
		if ip && c.Hook == "forward" && c.Policy == "drop" {
			return ForwardDrop, fmt.Sprintf("nft chain %s %s %s", c.Family, c.Table, c.Name), nil
		}
	}
	return ForwardAccept, "", nil
}
