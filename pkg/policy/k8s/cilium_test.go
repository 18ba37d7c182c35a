package k8s

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/types"
)

// cnp returns a CiliumNetworkPolicy of namespace shop that selects app=web, with
// more spec.
func cnp(spec string) string {
	return "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: p, namespace: shop}\n" +
		"spec:\n  endpointSelector: {matchLabels: {app: web}}\n  " + strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ") + "\n"
}

// ccnp is cnp for the clusterwide kind.
func ccnp(spec string) string {
	return strings.Replace(strings.Replace(cnp(spec), ", namespace: shop", "", 1), "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", 1)
}

// B15: an explicit empty peer list is nobody, no peer key is anybody, an empty
// member is nobody, an empty section alone is refused.
func TestB15_CiliumEmptyLists(t *testing.T) {
	nobody := []flow{{"db", "web", "TCP/80", false}, {"out10", "web", "TCP/80", false}, {"node", "web", "TCP/80", false}, {"web", "db", "TCP/80", true}}
	for _, spec := range []string{
		"ingress: [{fromCIDR: [], toPorts: [{ports: [{port: '80'}]}]}]",
		"ingress: [{fromEndpoints: []}]", "ingress: [{fromEntities: []}]", "ingress: [{fromCIDRSet: []}]",
		"ingress: [{fromCIDR: [], fromEndpoints: [], fromEntities: []}]",
		"ingress: [{fromEndpoints: [], toPorts: []}]", "ingress: [{}]", "ingress: [{toPorts: []}]",
		"ingress: [{fromEntities: [none]}]", "ingressDeny: [{}]",
	} {
		check(t, cnp(spec), nobody...)
	}
	check(t, cnp("ingress: [{toPorts: [{ports: [{port: '80'}]}]}]"), flow{"db", "web", "TCP/80", true}, flow{"out10", "web", "UDP/80", true},
		flow{"db", "web", "TCP/81", false})
	check(t, cnp("ingress: []\negress: [{}]"), flow{"db", "web", "TCP/80", true}, flow{"web", "db", "TCP/80", false})
	check(t, cnp("ingressDeny: [{fromEndpoints: [], toPorts: [{ports: [{port: '80'}]}]}]\nenableDefaultDeny: {ingress: false}"),
		flow{"db", "web", "TCP/80", true})
	for _, spec := range []string{"ingress: []", "", "ingress: []\negress: []\ningressDeny: []\negressDeny: []", "enableDefaultDeny: {ingress: true}"} {
		_, err := translate(cnp(spec))
		require.ErrorContains(t, err, "spec: has no rule, so it would do nothing; give ingress", spec)
	}
	for _, spec := range []string{"ingress:\n- fromEndpoints:", "ingress: [{fromCIDR: null}]", "ingress:", "ingress: [{fromEndpoints: []}]\negress: null"} {
		_, err := translate(cnp(spec))
		require.ErrorContains(t, err, "is null; leave the field out, or write {} or []", spec)
	}
}

// B16 for cilium.io: no endpoint selector matches the outside or a node unless it
// asks for a reserved label.
func TestB16_EndpointSelectorsMatchPodsOnly(t *testing.T) {
	for _, kind := range []func(string) string{cnp, ccnp} {
		for _, s := range []string{
			"{}", "{matchExpressions: [{key: none, operator: DoesNotExist}]}",
			"{matchExpressions: [{key: 'k8s:io.kubernetes.pod.namespace', operator: NotIn, values: [green]}]}",
			"{matchExpressions: [{key: 'any:io.kubernetes.pod.namespace', operator: DoesNotExist}]}",
			"{matchExpressions: [{key: 'k8s:io.cilium.k8s.namespace.labels.team', operator: NotIn, values: [green]}]}",
			"{matchExpressions: [{key: 'reserved:init', operator: DoesNotExist}]}",
			"{matchExpressions: [{key: 'reserved:host', operator: NotIn, values: [a]}]}",
		} {
			check(t, kind("egress: [{toEndpoints: ["+s+"]}]"), flow{"web", "out10", "TCP/80", false}, flow{"web", "host", "TCP/80", false},
				flow{"web", "node", "TCP/80", false})
			check(t, kind("ingress: [{fromEndpoints: ["+s+"]}]"), flow{"out10", "web", "TCP/80", false}, flow{"node", "web", "TCP/80", false})
		}
	}
	check(t, cnp("egress: [{toEndpoints: [{matchLabels: {'reserved:host': ''}}]}]"), flow{"web", "host", "TCP/80", true}, flow{"web", "node", "TCP/80", false})
}

func TestCiliumPeers(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		flows []flow
	}{
		"a peer of a namespaced policy is in its namespace": {cnp("ingress: [{fromEndpoints: [{}]}]"),
			[]flow{{"db", "web", "TCP/80", true}, {"ops", "web", "TCP/80", false}}},
		"a peer of a clusterwide policy is in any": {ccnp("ingress: [{fromEndpoints: [{}]}]"),
			[]flow{{"db", "web", "TCP/80", true}, {"ops", "web", "TCP/80", true}, {"out10", "web", "TCP/80", false}}},
		"a peer may name another namespace": {cnp("ingress: [{fromEndpoints: [{matchLabels: {io.kubernetes.pod.namespace: admin}}]}]"),
			[]flow{{"db", "web", "TCP/80", false}, {"ops", "web", "TCP/80", true}}},
		"a peer may name labels of namespaces": {cnp("ingress: [{fromEndpoints: [{matchLabels: {'k8s:io.cilium.k8s.namespace.labels.team': blue}}]}]"),
			[]flow{{"db", "web", "TCP/80", false}, {"ops", "web", "TCP/80", true}}},
		"a peer may name another cluster": {cnp("ingress: [{fromEndpoints: [{matchLabels: {'k8s:io.cilium.k8s.policy.cluster': green}}]}]"),
			[]flow{{"db", "web", "TCP/80", false}}},
		"the source any looks at all sources": {cnp("ingress: [{fromEndpoints: [{matchLabels: {'any:app': db}}]}]"),
			[]flow{{"db", "web", "TCP/80", true}, {"ops", "web", "TCP/80", false}}},
		"toCIDR is not pods, nor nodes": {cnp("egress: [{toCIDR: [0.0.0.0/0]}]"),
			[]flow{{"web", "out10", "TCP/80", true}, {"web", "db", "TCP/80", false}, {"web", "node", "TCP/80", false}, {"web6", "out6", "TCP/80", false}}},
		"toCIDR may be one address": {cnp("egress: [{toCIDR: [203.0.113.10, '2001:db8::10']}]"),
			[]flow{{"web", "out10", "TCP/80", true}, {"web", "out200", "TCP/80", false}, {"web6", "out6", "TCP/80", true}}},
		"B03: except holds in the widest block": {cnp("egress: [{toCIDRSet: [{cidr: 0.0.0.0/0, except: [203.0.113.10/32]}]}]"),
			[]flow{{"web", "out10", "TCP/80", false}, {"web", "out200", "TCP/80", true}}},
		"B03: and leaves the address to other rules": {cnp("egress: [{toCIDRSet: [{cidr: 0.0.0.0/0, except: [203.0.113.10/32]}]}, {toCIDR: [203.0.113.10/32]}]"),
			[]flow{{"web", "out10", "TCP/80", true}}},
		"B10: a wide deny beats a narrow allow": {cnp("egress: [{toCIDR: [203.0.113.10/32]}]\negressDeny: [{toCIDR: [203.0.113.0/24]}]"),
			[]flow{{"web", "out10", "TCP/80", false}}},
		"G03: a deny holds against entity all": {ccnp("egress: [{toEntities: [all]}]\negressDeny: [{toCIDR: [203.0.113.0/24]}]"),
			[]flow{{"web", "out10", "TCP/80", false}, {"web", "db", "TCP/80", true}, {"web6", "out6", "TCP/80", true}}},
		"world is the outside of both families": {cnp("egress: [{toEntities: [world]}]"),
			[]flow{{"web", "out10", "TCP/80", true}, {"web6", "out6", "TCP/80", true}, {"web", "db", "TCP/80", false}, {"web", "host", "TCP/80", false}}},
		"cluster is pods and nodes": {cnp("egress: [{toEntities: [cluster]}]"),
			[]flow{{"web", "out10", "TCP/80", false}, {"web", "ops", "TCP/80", true}, {"web", "host", "TCP/80", true}, {"web", "node", "TCP/80", true}}},
		"host and remote-node are two": {cnp("egress: [{toEntities: [remote-node]}]"),
			[]flow{{"web", "host", "TCP/80", false}, {"web", "node", "TCP/80", true}}},
		"B22: the local node may come in by default, a remote one not": {cnp("ingress: [{}]"),
			[]flow{{"host", "web", "TCP/80", true}, {"node", "web", "TCP/80", false}}},
		"an explicit deny keeps the local node out": {cnp("ingressDeny: [{fromEntities: [host]}]"),
			[]flow{{"host", "web", "TCP/80", false}}},
		"enableDefaultDeny false leaves the rest open": {cnp("ingressDeny: [{fromEndpoints: [{matchLabels: {app: db}}]}]\nenableDefaultDeny: {ingress: false}"),
			[]flow{{"db", "web", "TCP/80", false}, {"ops", "web", "TCP/80", true}, {"out10", "web", "TCP/80", true}}},
		"enableDefaultDeny true closes a direction without rules": {cnp("ingress: [{fromEntities: [all]}]\nenableDefaultDeny: {egress: true}"),
			[]flow{{"db", "web", "TCP/80", true}, {"web", "db", "TCP/80", false}}},
		"a clusterwide subject is every pod": {strings.Replace(ccnp("egress: [{}]"), "{matchLabels: {app: web}}", "{}", 1),
			[]flow{{"web", "db", "TCP/80", false}, {"ops", "db", "TCP/80", false}, {"host", "web", "TCP/80", true}}},
		"a namespaced subject stays in the namespace": {strings.Replace(cnp("egress: [{}]"), "{matchLabels: {app: web}}",
			"{matchExpressions: [{key: 'reserved:init', operator: DoesNotExist}]}", 1),
			[]flow{{"web", "db", "TCP/80", false}, {"ops", "db", "TCP/80", true}}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.text, c.flows...) })
	}
}

func TestCiliumPorts(t *testing.T) {
	ports := func(s string) string { return cnp("ingress: [{toPorts: [" + s + "]}]") }
	for name, c := range map[string]struct {
		text  string
		flows []flow
	}{
		"no protocol is TCP, UDP and SCTP": {ports("{ports: [{port: '80'}]}"),
			[]flow{{"db", "web", "TCP/80", true}, {"db", "web", "UDP/80", true}, {"db", "web", "SCTP/80", true}, {"db", "web", "TCP/81", false}}},
		"ANY is the same": {ports("{ports: [{port: '80', protocol: ANY}]}"),
			[]flow{{"db", "web", "UDP/80", true}, {"db", "web", "ICMP/80", false}}},
		"port 0 is every port of the protocol": {ports("{ports: [{port: '0', protocol: UDP}]}"),
			[]flow{{"db", "web", "UDP/9", true}, {"db", "web", "TCP/9", false}}},
		"a range": {ports("{ports: [{port: '80', endPort: 90, protocol: TCP}]}"),
			[]flow{{"db", "web", "TCP/79", false}, {"db", "web", "TCP/90", true}, {"db", "web", "TCP/91", false}}},
		"two members of toPorts": {ports("{ports: [{port: '80', protocol: TCP}]}, {ports: [{port: '53', protocol: UDP}]}"),
			[]flow{{"db", "web", "TCP/80", true}, {"db", "web", "UDP/53", true}, {"db", "web", "UDP/80", false}}},
		"B06: a number and a name in one list": {ports("{ports: [{port: '80'}, {port: http}, {port: unknown}]}"),
			[]flow{{"db", "web", "TCP/80", true}, {"db", "web", "TCP/8080", true}, {"db", "web", "UDP/8080", false}, {"db", "web", "TCP/81", false}}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.text, c.flows...) })
	}
}

func TestCiliumRefusals(t *testing.T) {
	in := func(s string) string { return cnp("ingress: [{" + s + "}]") }
	out := func(s string) string { return cnp("egress: [{" + s + "}]") }
	many := strings.Repeat("{port: '80'}, ", api.MaxPorts) + "{port: '81'}"
	for name, c := range map[string]struct{ text, want string }{
		"toFQDNs":            {out("toFQDNs: [{matchName: a}]"), "p.yaml:6: CiliumNetworkPolicy shop/p: spec.egress[0].toFQDNs: not supported yet; list the addresses"},
		"deny section":       {cnp("ingressDeny: [{authentication: {}}]"), "spec.ingressDeny[0].authentication: not supported yet; "},
		"fromGroups":         {in("fromGroups: []"), "spec.ingress[0].fromGroups: not supported yet; "},
		"toGroups":           {out("toGroups: []"), "spec.egress[0].toGroups: not supported yet; "},
		"fromRequires":       {in("fromRequires: []"), "spec.ingress[0].fromRequires: not supported yet; "},
		"authentication":     {in("authentication: {mode: required}"), "spec.ingress[0].authentication: not supported yet; "},
		"rules":              {in("toPorts: [{ports: [{port: '80'}], rules: {http: []}}]"), "spec.ingress[0].toPorts[0].rules: not supported yet; "},
		"serverNames":        {out("toPorts: [{serverNames: [a]}]"), "toPorts[0].serverNames: not supported yet; "},
		"nodeSelector":       {cnp("nodeSelector: {}\ningress: [{}]"), "spec.nodeSelector: not supported yet; use endpointSelector"},
		"in specs":           {strings.Replace(out("toFQDNs: []"), "spec:\n ", "specs:\n-", 1), "specs[0].egress[0].toFQDNs: not supported yet; "},
		"wrong section":      {in("toEndpoints: []"), "spec.ingress[0].toEndpoints: is not a field that exists here; did you mean fromEndpoints?"},
		"misspelt":           {out("toEntites: [all]"), "did you mean toEntities?"},
		"wrong case":         {out("toCidr: []"), "did you mean toCIDR?"},
		"no selector":        {strings.Replace(in(""), "endpointSelector: {matchLabels: {app: web}}", "description: x", 1), "spec.endpointSelector: is missing; give {}"},
		"no spec":            {"apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: p}", "has neither spec nor specs"},
		"entity":             {out("toEntities: [al]"), `toEntities[0]: "al" is no entity; did you mean all?`},
		"entity in capitals": {out("toEntities: [World]"), `did you mean world?`},
		"two kinds of peers": {out("toEntities: [all], toCIDR: [10.0.0.0/8]"), "spec.egress[0].toEntities: stands beside toCIDR; write them as two elements"},
		"port as number":     {in("toPorts: [{ports: [{port: 80}]}]"), `toPorts[0].ports[0].port: is not text for every reader of YAML; write "80" in quotes`},
		"port missing":       {in("toPorts: [{ports: [{protocol: TCP}]}]"), "port: is missing"},
		"port too big":       {in("toPorts: [{ports: [{port: '70000'}]}]"), "port: is 70000; give a number from 1 to 65535"},
		"endPort below":      {in("toPorts: [{ports: [{port: '80', endPort: 8}]}]"), "endPort: is 8; give a number from port, 80, to 65535"},
		"endPort of port 0":  {in("toPorts: [{ports: [{port: '0', endPort: 8}]}]"), "port: is 0"},
		"endPort of a name":  {in("toPorts: [{ports: [{port: http, endPort: 8}]}]"), "but port is the name"},
		"protocol":           {in("toPorts: [{ports: [{port: '80', protocol: QUIC}]}]"), `"QUIC" is not known`},
		"protocol ICMP":      {in("toPorts: [{ports: [{port: '8', protocol: ICMP}]}]"), "protocol: ICMP: has types, not ports; write the types in icmps"},
		"protocol VRRP":      {in("toPorts: [{ports: [{port: '0', protocol: VRRP}]}]"), "protocol: VRRP: not supported yet; leave toPorts out"},
		"protocol IGMP":      {in("toPorts: [{ports: [{port: '0', protocol: IGMP}]}]"), "protocol: IGMP: not supported yet; leave toPorts out"},
		"no ports":           {in("toPorts: [{ports: []}]"), "toPorts[0].ports: is empty"},
		"too many ports":     {in("toPorts: [{ports: [" + many + "]}]"), "toPorts[0].ports: has 41 members, the most is 40"},
		"except outside":     {in("fromCIDRSet: [{cidr: 10.0.0.0/8, except: [11.0.0.0/8]}]"), "does not lie inside the block"},
		"except of a family": {in("fromCIDRSet: [{cidr: 10.0.0.0/8, except: ['fd00::/8']}]"), "is not of the family"},
		"source of a label":  {in("fromEndpoints: [{matchLabels: {'cidr:10.0.0.0/8': ''}}]"), `has the source "cidr"; there are k8s, any, reserved, container`},
		"foreign namespace":  {strings.Replace(in(""), "{app: web}", "{'k8s:io.kubernetes.pod.namespace': other}", 1), `is "other", but the policy governs pods of its own namespace "shop" only`},
		"namespace of ccnp":  {strings.Replace(ccnp("ingress: [{}]"), "name: p", "name: p, namespace: shop", 1), `metadata.namespace: is "shop", but the kind has no namespace`},
	} {
		t.Run(name, func(t *testing.T) {
			ps, err := translate(c.text)
			require.ErrorContains(t, err, c.want)
			require.Empty(t, ps)
		})
	}
	_, err := translate(in("toPorts: [{ports: [" + strings.TrimSuffix(many, ", {port: '81'}") + "]}]"))
	require.NoError(t, err, "the most ports that are allowed")
}

func TestMarksForPeopleAreKept(t *testing.T) {
	text := cnp("description: why\nlabels: [{key: a, value: b, source: c}]\ningress: [{}]") + "status: {conditions: [{type: Valid}]}\n"
	objects, err := Decode([]byte(text), "")
	require.NoError(t, err)
	spec := objects[0].Value.(*api.CiliumNetworkPolicy).Spec
	require.Equal(t, "why", spec.Description)
	require.Equal(t, []api.RuleLabel{{Key: "a", Value: "b", Source: "c"}}, spec.Labels)
}

func TestSpecAndSpecsAreOneObjectWithSeveralSubjects(t *testing.T) {
	ps := policies(t, cnp("ingress: [{}]")+"specs:\n- endpointSelector: {}\n  egress:\n  - {}\n  egressDeny:\n  - toEntities: [all]\n")
	require.Len(t, ps, 2)
	got := []string{}
	for _, p := range ps {
		require.Equal(t, "CiliumNetworkPolicy/shop/p", p.Resource.ID())
		for _, r := range p.Rules {
			got = append(got, fmt.Sprint(r.Ref, " ", r.Verdict))
		}
	}
	require.Equal(t, []string{
		"CiliumNetworkPolicy shop/p ingress[0] (p.yaml:6) allow", "CiliumNetworkPolicy shop/p specs[0].egress[0] (p.yaml:10) allow",
		"CiliumNetworkPolicy shop/p specs[0].egressDeny[0] (p.yaml:12) deny",
	}, got)
	require.Equal(t, types.Egress, ps[1].Rules[1].Direction)
	require.True(t, ps[0].IsolatesIngress && !ps[0].IsolatesEgress && ps[1].IsolatesEgress && !ps[1].IsolatesIngress)
}
