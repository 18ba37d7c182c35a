package cmd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
)

// bpfOptions says where the pins are.
type bpfOptions struct{ root string }

func (a *app) bpf() *cobra.Command {
	o := &bpfOptions{}
	use := func(use, short string, run func(*cobra.Command, bpf.Root) error) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: exactArgs(0), RunE: func(c *cobra.Command, _ []string) error {
			root, err := a.bpfRoot(c, o)
			if err != nil {
				return err
			}
			return run(c, root)
		}}
	}
	policy := &cobra.Command{Use: "policy ID", Short: "dump the policy map of an endpoint, each entry with its rule", Args: exactArgs(1),
		Long: endpointIDHelp + "\nJUDGED counts the packets that a line decided; PACKETS and BYTES are those of the flows that its rule let through, as the agent knows them.",
		RunE: func(c *cobra.Command, args []string) error { return a.bpfPolicy(c, o, args[0]) }}
	g := group("bpf", "dump what the kernel holds (root)", policy,
		use("ct", "dump connections from their initiator", a.bpfCT),
		use("ipcache", "dump prefixes with identities", a.bpfIPCache),
		use("metrics", "dump the counters of packets by reason: passed, dropped and why, events lost", a.bpfMetrics),
		use("endpoint", "dump endpoints by address with their policy slots", a.bpfEndpoint))
	g.PersistentFlags().StringVar(&o.root, "bpf-root", "", "the agent's directory on a bpffs (default: ask the agent)")
	return g
}

// bpfRoot opens the directory given, or the one that the agent names.
func (a *app) bpfRoot(c *cobra.Command, o *bpfOptions) (bpf.Root, error) {
	path := o.root
	if path == "" {
		cfg, err := a.agent().Config(c.Context())
		if err != nil {
			return bpf.Root{}, fmt.Errorf("%w (with the agent down, name its directory by --bpf-root)", err)
		}
		path = cfg.BpffsRoot
	}
	return bpf.Root{Path: path}, bpf.CheckFS(path)
}

// policyLine is an entry for people and programs.
type policyLine struct {
	Direction  string `json:"direction"`
	Stage      uint8  `json:"stage"`    // 0: asked first
	Identity   uint32 `json:"identity"` // 0: any
	Proto      string `json:"proto"`
	Port       uint16 `json:"port"`
	PortBits   uint8  `json:"portBits"`
	Verdict    string `json:"verdict"`
	Precedence uint32 `json:"precedence"`
	Rule       uint32 `json:"rule"`
	RuleText   string `json:"ruleText,omitempty"`
	Judged     uint64 `json:"judged"`  // packets that the line decided or passed on
	Packets    uint64 `json:"packets"` // of the flows that the line's rule let through
	Bytes      uint64 `json:"bytes"`
}

func (a *app) bpfPolicy(c *cobra.Command, o *bpfOptions, id string) error {
	root, err := a.bpfRoot(c, o)
	if err != nil {
		return err
	}
	agent := a.agent()
	e, err := agent.Endpoint(c.Context(), id)
	if err != nil {
		return err
	}
	reader, err := policymap.OpenReader(root)
	if err != nil {
		return err
	}
	defer reader.Close()
	if e.Policy.Slot == 0 {
		_, err := fmt.Fprintf(a.out, "endpoint %d is in slot 0: everything is denied\n", e.ID)
		return err
	}
	entries, err := reader.Dump(e.Policy.Slot)
	if err != nil {
		return err
	}
	counters, err := agent.EndpointCounters(c.Context(), id)
	if err != nil {
		return err
	}
	texts := map[uint32]string{}
	for _, v := range entries {
		if _, asked := texts[v.Rule]; !asked {
			if r, err := agent.Rule(c.Context(), v.Rule); err == nil {
				texts[v.Rule] = r.Text
			}
		}
	}
	lines := policyLines(entries, counters, texts)
	return a.show(lines, func() error {
		var cells [][]string
		for _, l := range lines {
			cells = append(cells, l.cells())
		}
		return a.rows("DIRECTION STAGE IDENTITY PROTO PORT VERDICT PRECEDENCE JUDGED PACKETS BYTES NUMBER RULE", cells)
	})
}

// policyLines are the entries of a policy map with what their rules let through,
// in the order of direction, stage and peer. texts are the rules by number.
func policyLines(entries map[policymap.Key]policymap.Entry, counters []gen.RuleCounter, texts map[uint32]string) []policyLine {
	type ruleOf struct {
		direction string
		rule      uint32
	}
	carried := map[ruleOf]gen.RuleCounter{}
	for _, r := range counters {
		carried[ruleOf{string(r.Direction), r.Rule.ID}] = r
	}
	var lines []policyLine
	for k, v := range entries {
		verdict := "allow"
		switch {
		case v.Pass != 0:
			verdict = fmt.Sprintf("pass to stage %d", v.Pass)
		case v.Deny:
			verdict = "deny"
		}
		flows := carried[ruleOf{policytypes.Direction(k.Direction).String(), v.Rule}]
		lines = append(lines, policyLine{policytypes.Direction(k.Direction).String(), k.Stage, k.Identity, types.Proto(k.Protocol).String(), k.Port, k.PortBits,
			verdict, uint32(v.Order >> 32), v.Rule, texts[v.Rule], v.Judged, flows.Packets, flows.Bytes})
	}
	slices.SortFunc(lines, func(x, y policyLine) int {
		return cmp.Or(cmp.Compare(x.Direction, y.Direction), cmp.Compare(x.Stage, y.Stage), cmp.Compare(x.Identity, y.Identity), cmp.Compare(x.Proto, y.Proto), cmp.Compare(x.Port, y.Port), cmp.Compare(x.PortBits, y.PortBits))
	})
	return lines
}

// cells are the line for a table.
func (l policyLine) cells() []string {
	peer, port := "any", "any"
	if l.Identity != 0 {
		peer = fmt.Sprint(l.Identity)
	}
	if l.PortBits > 0 {
		port = fmt.Sprint(l.Port)
	}
	if l.PortBits > 0 && l.PortBits < 16 {
		port += fmt.Sprintf("-%d", l.Port|uint16(0xFFFF>>l.PortBits))
	}
	return []string{l.Direction, fmt.Sprint(l.Stage), peer, l.Proto, port, l.Verdict, fmt.Sprintf("%#08x", l.Precedence),
		fmt.Sprint(l.Judged), fmt.Sprint(l.Packets), fmt.Sprint(l.Bytes), fmt.Sprint(l.Rule), or(l.RuleText)}
}

func (a *app) bpfCT(_ *cobra.Command, root bpf.Root) error {
	var flows []ctmap.Flow
	for _, f := range []ctmap.Family{ctmap.IPv4, ctmap.IPv6} {
		m, err := ctmap.Open(root, f)
		if err != nil {
			return err
		}
		part, err := m.Dump()
		m.Close()
		if err != nil {
			return err
		}
		flows = append(flows, part...)
	}
	return a.show(flows, func() error {
		var cells [][]string
		for _, f := range flows {
			cells = append(cells, ctCells(f))
		}
		return a.rows("PROTO SOURCE DESTINATION PACKETS BYTES EXPIRES STATE EGRESS-RULE INGRESS-RULE", cells)
	})
}

// ctCells are the cells of one flow.
func ctCells(f ctmap.Flow) []string {
	state := "-"
	switch {
	case f.InitiatorClosing || f.ResponderClosing:
		state = "closing"
	case f.SeenReply:
		state = "replied"
	}
	left := time.Duration(f.Expires)*time.Second - bpf.FlowTime()
	return []string{
		types.Proto(f.Protocol).String(), f.Initiator.String(), f.Responder.String(), fmt.Sprint(f.Packets), fmt.Sprint(f.Bytes),
		left.Round(time.Second).String(), state, fmt.Sprint(f.EgressRule), fmt.Sprint(f.IngressRule),
	}
}

func (a *app) bpfIPCache(_ *cobra.Command, root bpf.Root) error {
	m, err := ipcachemap.Open(root)
	if err != nil {
		return err
	}
	defer m.Close()
	entries, err := m.Dump()
	if err != nil {
		return err
	}
	return a.show(entries, func() error {
		var cells [][]string
		for _, p := range sortedPrefixes(entries) {
			e := entries[p]
			cells = append(cells, []string{p.String(), fmt.Sprint(e.Identity), fmt.Sprint(e.PrefixIdentity)})
		}
		return a.rows("PREFIX IDENTITY PREFIX-IDENTITY", cells)
	})
}

func sortedPrefixes[V any](m map[netip.Prefix]V) []netip.Prefix {
	var out []netip.Prefix
	for p := range m {
		out = append(out, p)
	}
	slices.SortFunc(out, func(x, y netip.Prefix) int {
		return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
	})
	return out
}

func (a *app) bpfEndpoint(_ *cobra.Command, root bpf.Root) error {
	m, err := lxcmap.Open(root)
	if err != nil {
		return err
	}
	defer m.Close()
	words, err := lxcmap.OpenConfig(root)
	if err != nil {
		return err
	}
	defer words.Close()
	entries, err := m.Dump()
	if err != nil {
		return err
	}
	type line struct {
		Address        netip.Addr `json:"address"`
		ID             uint16     `json:"id"`
		Identity       uint32     `json:"identity"`
		PrefixIdentity uint32     `json:"prefixIdentity,omitempty"`
		IfIndex        uint32     `json:"ifindex"`
		MAC            types.MAC  `json:"mac"`
		Slot           uint32     `json:"slot"`
		Revision       uint32     `json:"revision"`
	}
	var lines []line
	for addr, i := range entries {
		slot, revision, err := words.Policy(i.ID)
		if err != nil {
			return err
		}
		lines = append(lines, line{addr, i.ID, i.Identity, i.PrefixIdentity, i.IfIndex, i.MAC, slot, revision})
	}
	slices.SortFunc(lines, func(x, y line) int { return x.Address.Compare(y.Address) })
	return a.show(lines, func() error {
		var cells [][]string
		for _, l := range lines {
			cells = append(cells, []string{l.Address.String(), fmt.Sprint(l.ID), fmt.Sprint(l.Identity), fmt.Sprint(l.PrefixIdentity),
				fmt.Sprint(l.IfIndex), l.MAC.String(), fmt.Sprint(l.Slot), fmt.Sprint(l.Revision)})
		}
		return a.rows("ADDRESS ID IDENTITY PREFIX-IDENTITY IFINDEX MAC SLOT REVISION", cells)
	})
}
