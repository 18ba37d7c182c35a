package oracle

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

var (
	webAddr, dbAddr   = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	nodeAddr, farAddr = netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("203.0.113.7")
	http              = types.NamedPort{Name: "http", Proto: wtypes.ProtoTCP}
)

func app(name string) labels.LabelArray {
	return labels.NewLabelArray(labels.New(labels.SourceK8s, "app", name))
}

func world() *World {
	return &World{
		Pods: []Pod{{Name: "web", Labels: app("web"), Addrs: []netip.Addr{webAddr}, NamedPorts: types.NamedPorts{http: 8080}},
			{Name: "db", Labels: app("db"), Addrs: []netip.Addr{dbAddr}}},
		Nodes: []Node{{Name: "here", Local: true, Addrs: []netip.Addr{nodeAddr}}},
	}
}

// The oracle judges others, so its own answers are written out by hand.
func TestJudgeByHand(t *testing.T) {
	db := labels.Equals(labels.New(labels.SourceK8s, "app", "db"))
	res := types.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: "web"}
	rule := func(section string, index int, v types.Verdict, peers []types.Peer, ports []types.Port) types.Rule {
		return types.Rule{Ref: types.RuleRef{Resource: res, Section: section, Index: index}, Verdict: v, Peers: peers, Ports: ports}
	}
	block := func(pods bool) []types.Peer {
		return []types.Peer{{CIDR: &types.CIDRPeer{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Pods: pods,
			Except: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28")}}}}
	}
	tcp := func(port, end uint16) []types.Port {
		return []types.Port{{Proto: wtypes.ProtoTCP, Port: port, End: end}}
	}
	byLabel := []types.Peer{{Labels: &db}}
	for name, at := range map[string]struct {
		rules []types.Rule
		mode  types.Mode
		src   netip.Addr
		proto wtypes.Proto
		port  uint16
		want  string
	}{
		"nothing allows":                  {nil, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 80, "deny default deny, because the pod is selected by NetworkPolicy x/web"},
		"the local node":                  {nil, types.ModeDefault, nodeAddr, wtypes.ProtoTCP, 80, "allow the local node may always reach its pods"},
		"never":                           {nil, types.ModeNever, dbAddr, wtypes.ProtoTCP, 80, "allow enforcement mode never"},
		"by label":                        {[]types.Rule{rule("ingress", 0, types.Allow, byLabel, nil)}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 80, "allow NetworkPolicy x/web ingress[0]"},
		"nobody":                          {[]types.Rule{rule("ingress", 0, types.Allow, []types.Peer{}, nil)}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 80, "deny default deny, because the pod is selected by NetworkPolicy x/web"},
		"no port":                         {[]types.Rule{rule("ingress", 0, types.Allow, nil, []types.Port{})}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 80, "deny default deny, because the pod is selected by NetworkPolicy x/web"},
		"last port of a range":            {[]types.Rule{rule("ingress", 0, types.Allow, nil, tcp(80, 90))}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 90, "allow NetworkPolicy x/web ingress[0]"},
		"past a range":                    {[]types.Rule{rule("ingress", 0, types.Allow, nil, tcp(80, 90))}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 91, "deny default deny, because the pod is selected by NetworkPolicy x/web"},
		"another protocol":                {[]types.Rule{rule("ingress", 0, types.Allow, nil, tcp(80, 0))}, types.ModeDefault, dbAddr, wtypes.ProtoUDP, 80, "deny default deny, because the pod is selected by NetworkPolicy x/web"},
		"named port":                      {[]types.Rule{rule("ingress", 0, types.Allow, nil, []types.Port{{Proto: wtypes.ProtoTCP, Name: "http"}})}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 8080, "allow NetworkPolicy x/web ingress[0]"},
		"block for pods":                  {[]types.Rule{rule("ingress", 0, types.Allow, block(true), nil)}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 80, "allow NetworkPolicy x/web ingress[0]"},
		"block for the outside, a pod":    {[]types.Rule{rule("ingress", 0, types.Allow, block(false), nil)}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 80, "deny default deny, because the pod is selected by NetworkPolicy x/web"},
		"block for the outside, excepted": {[]types.Rule{rule("ingress", 0, types.Allow, block(false), nil)}, types.ModeDefault, farAddr, wtypes.ProtoTCP, 80, "deny default deny, because the pod is selected by NetworkPolicy x/web"},
		"a deny beats an allow before it": {[]types.Rule{rule("ingress", 0, types.Allow, byLabel, tcp(80, 0)), rule("ingressDeny", 0, types.Deny, nil, nil)}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 80, "deny NetworkPolicy x/web ingressDeny[0]"},
		"a deny beats the local node":     {[]types.Rule{rule("ingressDeny", 0, types.Deny, nil, nil)}, types.ModeDefault, nodeAddr, wtypes.ProtoTCP, 80, "deny NetworkPolicy x/web ingressDeny[0]"},
		"the first of two allows":         {[]types.Rule{rule("ingress", 1, types.Allow, nil, nil), rule("ingress", 0, types.Allow, byLabel, nil)}, types.ModeDefault, dbAddr, wtypes.ProtoTCP, 80, "allow NetworkPolicy x/web ingress[0]"},
	} {
		p := &types.Policy{Resource: res, Subject: labels.Equals(labels.New(labels.SourceK8s, "app", "web")), IsolatesIngress: true, Rules: at.rules}
		v := Judge(world(), []*types.Policy{p}, at.mode, Connection{Src: at.src, Dst: webAddr, Proto: at.proto, Port: at.port})
		require.Equal(t, at.want, v.Ingress.Verdict.String()+" "+v.Ingress.Ref.String(), name)
		require.Equal(t, types.Allow, v.Egress.Verdict, name)
		require.Equal(t, at.src == dbAddr, v.Egress.Judged, name)
		require.Equal(t, v.Ingress.Verdict == types.Allow, v.Allowed(), name)
	}
}
