package k8s

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/types"
)

// references are those of the tests' world: two groups, services of each kind in
// shop and admin, and both nodes.
func references() *References {
	at := func(name string) netip.Addr { return netip.MustParseAddr(addrs[name]) }
	block := func(s ...string) (out []netip.Prefix) {
		for _, b := range s {
			out = append(out, netip.MustParsePrefix(b))
		}
		return out
	}
	r := &References{Groups: map[string]*CIDRGroup{}, Services: map[string]*Service{}, Nodes: map[string]*Node{}}
	for _, g := range []*CIDRGroup{
		{"partners", map[string]string{"who": "partner"}, block("203.0.113.0/24", "2001:db8::/32")},
		{"office", map[string]string{"who": "us"}, block("198.51.100.0/24")},
		{"pods", map[string]string{"who": "us"}, block("10.0.0.0/8", "192.0.2.0/24")},
	} {
		r.Groups[g.Name] = g
	}
	for _, s := range []*Service{
		{Namespace: "shop", Name: "db", Labels: map[string]string{"tier": "back"}, Selector: map[string]string{"app": "db"}},
		{Namespace: "admin", Name: "db", Labels: map[string]string{"tier": "back"}, Selector: map[string]string{"app": "ops"}},
		{Namespace: "shop", Name: "pay", Labels: map[string]string{"tier": "out"}, Addresses: []netip.Addr{at("out10"), at("out6"), at("db"), at("node")}},
		{Namespace: "shop", Name: "empty"},
	} {
		r.Services[s.Namespace+"/"+s.Name] = s
	}
	r.Nodes["host"] = &Node{Name: "host", Labels: map[string]string{"zone": "a", "role": "gate"}, Addresses: []netip.Addr{at("host")}, Local: true}
	r.Nodes["node"] = &Node{Name: "node", Labels: map[string]string{"zone": "b", "role": "gate"}, Addresses: []netip.Addr{at("node"), netip.MustParseAddr("fd00:1::2")}}
	return r
}

func traced(t *testing.T, text string, r *References) Translation {
	t.Helper()
	objects, err := Decode([]byte(text), "p.yaml")
	require.NoError(t, err)
	require.Len(t, objects, 1)
	tr, err := TranslateTraced(objects[0], Options{ClusterName: cluster, References: r})
	require.NoError(t, err)
	return tr
}

func TestWhatPoliciesNameBesidePods(t *testing.T) {
	out := func(s string) string { return cnp("egress: [{" + s + "}]") }
	for name, c := range map[string]struct {
		text  string
		uses  []Use
		flows []flow
	}{
		"a group by name": {out("toCIDRSet: [{cidrGroupRef: partners}]"), []Use{{api.KindCIDRGroup, "partners"}},
			[]flow{{"web", "out10", "TCP/80", true}, {"web", "out200", "TCP/80", true}, {"web6", "out6", "TCP/80", true}, {"web", "db", "TCP/80", false}}},
		"a group with an except": {out("toCIDRSet: [{cidrGroupRef: partners, except: [203.0.113.128/25, 10.0.0.0/8]}]"), []Use{{api.KindCIDRGroup, "partners"}},
			[]flow{{"web", "out10", "TCP/80", true}, {"web", "out200", "TCP/80", false}, {"web6", "out6", "TCP/80", true}}},
		"an except around a block takes it out": {out("toCIDRSet: [{cidrGroupRef: partners, except: [203.0.0.0/16]}]"), []Use{{api.KindCIDRGroup, "partners"}},
			[]flow{{"web", "out10", "TCP/80", false}, {"web6", "out6", "TCP/80", true}}},
		"groups by label": {out("toCIDRSet: [{cidrGroupSelector: {matchExpressions: [{key: who, operator: NotIn, values: [us]}]}}]"), []Use{{api.KindCIDRGroup, ""}},
			[]flow{{"web", "out10", "TCP/80", true}}},
		"groups by label that none has": {out("toCIDRSet: [{cidrGroupSelector: {matchLabels: {who: nobody}}}]"), []Use{{api.KindCIDRGroup, ""}},
			[]flow{{"web", "out10", "TCP/80", false}}},
		"a group never selects pods or nodes": {out("toCIDRSet: [{cidrGroupRef: pods}]"), []Use{{api.KindCIDRGroup, "pods"}},
			[]flow{{"web", "db", "TCP/80", false}, {"web", "node", "TCP/80", false}}},
		"a group denies": {ccnp("egress: [{toEntities: [all]}]\negressDeny: [{toCIDRSet: [{cidrGroupRef: partners, except: [203.0.113.10/32]}]}]"),
			[]Use{{api.KindCIDRGroup, "partners"}}, []flow{{"web", "out10", "TCP/80", true}, {"web", "out200", "TCP/80", false}, {"web", "db", "TCP/80", true}}},
		"a group at ingress": {cnp("ingress: [{fromCIDRSet: [{cidrGroupRef: partners}, {cidr: 198.51.100.0/24}]}]"),
			[]Use{{api.KindCIDRGroup, "partners"}}, []flow{{"out10", "web", "TCP/80", true}, {"db", "web", "TCP/80", false}}},

		"a service that selects pods": {out("toServices: [{k8sService: {serviceName: db, namespace: shop}}]"), []Use{{KindService, "shop/db"}},
			[]flow{{"web", "db", "TCP/80", true}, {"web", "ops", "TCP/80", false}, {"web", "out10", "TCP/80", false}}},
		"a service selects pods of its own namespace": {out("toServices: [{k8sService: {serviceName: db, namespace: admin}}]"), []Use{{KindService, "admin/db"}},
			[]flow{{"web", "ops", "TCP/80", true}, {"web", "db", "TCP/80", false}}},
		"a service of any namespace": {out("toServices: [{k8sService: {serviceName: db}}]"), []Use{{KindService, ""}},
			[]flow{{"web", "ops", "TCP/80", true}, {"web", "db", "TCP/80", true}}},
		"a service without a selector is addresses outside": {out("toServices: [{k8sService: {serviceName: pay, namespace: shop}}]"), []Use{{KindService, "shop/pay"}},
			[]flow{{"web", "out10", "TCP/80", true}, {"web6", "out6", "TCP/80", true}, {"web", "out200", "TCP/80", false}, {"web", "db", "TCP/80", false}, {"web", "node", "TCP/80", false}}},
		"services by label": {out("toServices: [{k8sServiceSelector: {selector: {matchLabels: {tier: back}}, namespace: shop}}]"), []Use{{KindService, ""}},
			[]flow{{"web", "db", "TCP/80", true}, {"web", "ops", "TCP/80", false}}},
		"services by label in every namespace": {out("toServices: [{k8sServiceSelector: {selector: {}}}]"), []Use{{KindService, ""}},
			[]flow{{"web", "db", "TCP/80", true}, {"web", "ops", "TCP/80", true}, {"web", "out10", "TCP/80", true}, {"web", "node", "TCP/80", false}}},
		"a service and ports": {out("toServices: [{k8sService: {serviceName: db, namespace: shop}}], toPorts: [{ports: [{port: '5432', protocol: TCP}]}]"), []Use{{KindService, "shop/db"}},
			[]flow{{"web", "db", "TCP/5432", true}, {"web", "db", "TCP/80", false}}},
		"a service denies": {cnp("egress: [{toEntities: [all]}]\negressDeny: [{toServices: [{k8sService: {serviceName: db, namespace: shop}}]}]"), []Use{{KindService, "shop/db"}},
			[]flow{{"web", "db", "TCP/80", false}, {"web", "ops", "TCP/80", true}}},

		"every node": {out("toNodes: [{}]"), []Use{{KindNode, ""}},
			[]flow{{"web", "host", "TCP/80", true}, {"web", "node", "TCP/80", true}, {"web", "out10", "TCP/80", false}, {"web", "db", "TCP/80", false}}},
		"another node": {out("toNodes: [{matchLabels: {zone: b}}]"), []Use{{KindNode, ""}},
			[]flow{{"web", "host", "TCP/80", false}, {"web", "node", "TCP/80", true}}},
		"the local node": {out("toNodes: [{matchLabels: {zone: a}}]"), []Use{{KindNode, ""}},
			[]flow{{"web", "host", "TCP/80", true}, {"web", "node", "TCP/80", false}}},
		"nodes at ingress": {cnp("ingress: [{fromNodes: [{matchExpressions: [{key: zone, operator: In, values: [b, c]}]}], toPorts: [{ports: [{port: '80'}]}]}]"), []Use{{KindNode, ""}},
			[]flow{{"node", "web", "TCP/80", true}, {"node", "web", "TCP/81", false}, {"db", "web", "TCP/80", false}}},
		"no list of nodes has a member": {out("toNodes: [], toServices: [], toCIDRSet: []"), nil, []flow{{"web", "node", "TCP/80", false}}},
	} {
		t.Run(name, func(t *testing.T) {
			tr := traced(t, c.text, references())
			require.Equal(t, c.uses, tr.Uses)
			require.Empty(t, tr.Missing)
			ask(t, tr.Policies, c.flows)

			for _, unknown := range []*References{nil, {}} { // nobody, not anybody
				none := traced(t, c.text, unknown)
				require.Equal(t, c.uses, none.Uses)
				for i := range tr.Policies[0].Rules {
					was, is := tr.Policies[0].Rules[i], none.Policies[0].Rules[i]
					require.Equal(t, was.Peers == nil, is.Peers == nil)
				}
			}
		})
	}
}

func TestANameThatNothingIsKnownUnderIsToldAndNobody(t *testing.T) {
	tr := traced(t, cnp("egress: [{toCIDRSet: [{cidrGroupRef: gone}]}, {toServices: [{k8sService: {serviceName: none, namespace: shop}}, {k8sService: {serviceName: none}}]}]"), references())
	require.Equal(t, []Use{{api.KindCIDRGroup, "gone"}, {KindService, ""}, {KindService, "shop/none"}}, tr.Uses)
	var told []string
	for _, m := range tr.Missing {
		told = append(told, m.Error())
	}
	require.Equal(t, []string{
		"p.yaml:6: CiliumNetworkPolicy shop/p: spec.egress[0].toCIDRSet[0].cidrGroupRef: there is no CiliumCIDRGroup gone; it stands for nobody until there is",
		"p.yaml:6: CiliumNetworkPolicy shop/p: spec.egress[1].toServices[0].k8sService: there is no Service shop/none; it stands for nobody until there is",
		"p.yaml:6: CiliumNetworkPolicy shop/p: spec.egress[1].toServices[1].k8sService: there is no Service none; it stands for nobody until there is",
	}, told)
	ask(t, tr.Policies, []flow{{"web", "out10", "TCP/80", false}, {"web", "db", "TCP/80", false}})
}

// A service's author must not reach further than the policy's author sees.
func TestAServiceLeadsToPodsOfItsNamespaceAndClusterOnly(t *testing.T) {
	r := references()
	for _, selector := range []map[string]string{
		{"io.kubernetes.pod.namespace": "admin", "app": "ops"}, {labels.KeyCluster: "green", "app": "db"}, {"reserved:world": ""}, {"reserved:host": ""},
	} {
		r.Services["shop/db"].Selector = selector
		tr := traced(t, cnp("egress: [{toServices: [{k8sService: {serviceName: db, namespace: shop}}]}]"), r)
		ask(t, tr.Policies, []flow{{"web", "ops", "TCP/80", false}, {"web", "db", "TCP/80", false}, {"web", "out10", "TCP/80", false}, {"web", "host", "TCP/80", false}})
	}
}

func TestOnlyWhatUsesAChangedObjectIsStale(t *testing.T) {
	partners, anyGroup := Use{api.KindCIDRGroup, "partners"}, Use{api.KindCIDRGroup, ""}
	pay, anyService, node := Use{KindService, "shop/pay"}, Use{KindService, ""}, Use{KindNode, ""}
	all := []Use{partners, {api.KindCIDRGroup, "office"}, anyGroup, pay, {KindService, "shop/db"}, anyService, node}
	for name, c := range map[string]struct {
		change func(*References)
		stale  []Use
	}{
		"nothing":           {func(*References) {}, nil},
		"a block":           {func(r *References) { r.Groups["partners"].Blocks = nil }, []Use{partners, anyGroup}},
		"a label":           {func(r *References) { r.Groups["partners"].Labels = nil }, []Use{partners, anyGroup}},
		"a group goes":      {func(r *References) { delete(r.Groups, "partners") }, []Use{partners, anyGroup}},
		"a group comes":     {func(r *References) { r.Groups["new"] = &CIDRGroup{Name: "new"} }, []Use{anyGroup}},
		"an address":        {func(r *References) { r.Services["shop/pay"].Addresses = nil }, []Use{pay, anyService}},
		"a node's label":    {func(r *References) { r.Nodes["node"].Labels = nil }, []Use{node}},
		"a node is another": {func(r *References) { r.Nodes["node"].Local = true }, []Use{node}},
	} {
		t.Run(name, func(t *testing.T) {
			now := references()
			c.change(now)
			stale := now.Stale(references())
			for _, u := range all {
				want := false
				for _, s := range c.stale {
					want = want || s == u
				}
				require.Equal(t, want, stale([]Use{u}), "%v", u)
			}
			require.False(t, stale(nil))
		})
	}
	require.True(t, references().Stale(nil)([]Use{partners}))
	require.True(t, (*References)(nil).Stale(references())([]Use{partners}))
}

func TestCIDRGroups(t *testing.T) {
	group := func(spec string) string {
		return "apiVersion: cilium.io/v2\nkind: CiliumCIDRGroup\nmetadata: {name: g, labels: {a: b}}\nspec: " + spec + "\n"
	}
	read := func(text string) (*CIDRGroup, error) {
		docs, err := Split([]byte(text), "g.yaml")
		require.NoError(t, err)
		return docs[0].CIDRGroup()
	}
	for _, text := range []string{group("{externalCIDRs: [203.0.113.7/24, '2001:db8::1']}"), strings.Replace(group("{externalCIDRs: [203.0.113.0/24, '2001:db8::1/128']}"), "v2", "v2alpha1", 1)} {
		g, err := read(text)
		require.NoError(t, err)
		require.Equal(t, &CIDRGroup{"g", map[string]string{"a": "b"}, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::1/128")}}, g)
	}
	for text, want := range map[string]string{
		group("{externalCIDRs: [10.0.0.0/8, 10.0.0.0/33]}"):                          `g.yaml:4: CiliumCIDRGroup g: spec.externalCIDRs[1]: "10.0.0.0/33" is no address prefix`,
		group("{externalCIDRs: ['fe80::1%eth0/64']}"):                                "spec.externalCIDRs[0]",
		group("{externalCIDRs: ['']}"):                                               "spec.externalCIDRs[0]",
		group("{externalCIDRs: [{cidr: 10.0.0.0/8}]}"):                               "spec.externalCIDRs[0]: is a mapping; give text",
		group("{externalCIDRs: null}"):                                               "spec.externalCIDRs: is null",
		group("{}"):                                                                  "spec.externalCIDRs: is missing",
		group("{externalCIDR: []}"):                                                  "spec.externalCIDR: is not a field that exists here; did you mean externalCIDRs?",
		strings.Replace(group("{externalCIDRs: []}"), "v2", "v3", 1):                 `apiVersion: "cilium.io/v3" is not known for this kind`,
		strings.Replace(group("{externalCIDRs: []}"), ": g", ": G_", 1):              `metadata.name: "G_" is no name`,
		strings.Replace(group("{externalCIDRs: []}"), ": g", ": g, namespace: x", 1): `metadata.namespace: is "x", but the kind has no namespace`,
	} {
		g, err := read(text)
		require.ErrorContains(t, err, want)
		require.Nil(t, g)
	}
}

func TestReferringRefusals(t *testing.T) {
	out := func(s string) string { return cnp("egress: [{" + s + "}]") }
	for text, want := range map[string]string{
		out("toCIDRSet: [{}]"):                                                                  "toCIDRSet[0]: names no address; give cidr, cidrGroupRef or cidrGroupSelector",
		out("toCIDRSet: [{cidr: 10.0.0.0/8, cidrGroupRef: g}]"):                                 "toCIDRSet[0].cidrGroupRef: stands beside cidr; write them as two members",
		out("toCIDRSet: [{cidrGroupRef: g, cidrGroupSelector: {}}]"):                            "toCIDRSet[0].cidrGroupSelector: stands beside cidrGroupRef",
		out("toCIDRSet: [{cidrGroupRef: g, except: [10.0.0.0]}]"):                               `toCIDRSet[0].except[0]: "10.0.0.0" has no length`,
		out("toCIDRSet: [{cidrGroupRefs: g}]"):                                                  "did you mean cidrGroupRef?",
		out("toCIDRSet: [{cidrGroupSelector: {matchLabels: {'a:b': c}}}]"):                      "cidrGroupSelector.matchLabels[a:b]: is no label key",
		out("toNodes: [{matchLabels: {'reserved:host': ''}}]"):                                  "toNodes[0].matchLabels[reserved:host]: is no label key",
		out("toNodes: [{}], toEntities: [all]"):                                                 "spec.egress[0].toNodes: stands beside toEntities; write them as two elements",
		out("toServices: [{}]"):                                                                 "toServices[0]: names no service; give k8sService or k8sServiceSelector",
		out("toServices: [{k8sService: {}}]"):                                                   "toServices[0].k8sService.serviceName: is missing",
		out("toServices: [{k8sServiceSelector: {namespace: a}}]"):                               "toServices[0].k8sServiceSelector.selector: is missing; give {}",
		out("toServices: [{k8sService: {serviceName: a}, k8sServiceSelector: {selector: {}}}]"): "write them as two members",
		out("toServices: [{k8sService: {serviceName: a}}], toCIDR: [10.0.0.0/8]"):               "toServices: stands beside toCIDR",
		cnp("ingress: [{fromServices: []}]"):                                                    "spec.ingress[0].fromServices: is not a field that exists here",
		cnp("log: {value: " + strings.Repeat("a", 33) + "}\ningress: [{}]"):                     "spec.log.value: ",
		cnp("log: {value: \"a\\nb\"}\ningress: [{}]"):                                           "is not up to 32 printable ASCII characters",
		cnp("log: {level: debug}\ningress: [{}]"):                                               "spec.log.level: is not a field that exists here",
	} {
		ps, err := translate(text)
		require.ErrorContains(t, err, want)
		require.Empty(t, ps)
	}
}

func TestALogValueIsOnEveryRuleOfItsSpec(t *testing.T) {
	value := strings.Repeat("~", api.MaxLogValue)
	text := strings.Replace(cnp("log: {value: '"+value+"'}\ningress: [{}, {fromEntities: [all]}]\negressDeny: [{}]"), "spec:\n ", "specs:\n-", 1) +
		"- endpointSelector: {}\n  ingress: [{}]\n"
	ps := policies(t, text)
	require.Len(t, ps, 2)
	for _, r := range ps[0].Rules {
		require.Equal(t, value, r.Ref.Log)
	}
	require.Len(t, ps[0].Rules, 3)
	require.Equal(t, []string{""}, []string{ps[1].Rules[0].Ref.Log})
}

func TestEnableDefaultDenyIsPerDirection(t *testing.T) {
	for name, c := range map[string]struct {
		spec            string
		ingress, egress bool
	}{
		"by the rules, ingress":         {"ingress: [{}]", true, false},
		"by the rules, egress":          {"egressDeny: [{toEntities: [world]}]", false, true},
		"by the rules, both":            {"ingressDeny: [{}]\negress: [{}]", true, true},
		"off at ingress":                {"ingress: [{}]\negress: [{}]\nenableDefaultDeny: {ingress: false}", false, true},
		"off at egress":                 {"ingress: [{}]\negress: [{}]\nenableDefaultDeny: {egress: false}", true, false},
		"off in both":                   {"ingress: [{}]\negress: [{}]\nenableDefaultDeny: {ingress: false, egress: false}", false, false},
		"on where there is no rule":     {"ingress: [{}]\nenableDefaultDeny: {egress: true}", true, true},
		"on there, off where there are": {"ingress: [{}]\nenableDefaultDeny: {ingress: false, egress: true}", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := policies(t, cnp(c.spec))[0]
			require.Equal(t, []bool{c.ingress, c.egress}, []bool{p.IsolatesIngress, p.IsolatesEgress})
		})
	}
	// Another policy's default deny stays, and a rule of this one opens it.
	open := cnp("ingress: [{fromEntities: [world]}]\nenableDefaultDeny: {ingress: false}")
	check(t, open, flow{"db", "web", "TCP/80", true})
	closed := strings.Replace(cnp("ingress: [{}]"), "name: p", "name: q", 1)
	check(t, open+"---\n"+closed, flow{"db", "web", "TCP/80", false}, flow{"out10", "web", "TCP/80", true})
}

func TestICMPTypes(t *testing.T) {
	in := func(s string) string { return cnp("ingress: [{icmps: [" + s + "]}]") }
	many := strings.Repeat("{type: 8}, ", api.MaxICMPFields)
	for name, c := range map[string]struct {
		text  string
		flows []flow
	}{
		"by number": {in("{fields: [{type: 8}]}"), []flow{{"db", "web", "ICMP/8", true}, {"db", "web", "ICMP/0", false}, {"db", "web", "ICMP/13", false},
			{"db", "web", "TCP/8", false}, {"db", "web", "ICMPv6/8", false}, {"db", "web", "ICMPv6/128", false}}},
		"by number as text":          {in("{fields: [{type: '8'}]}"), []flow{{"db", "web", "ICMP/8", true}, {"db", "web", "ICMP/0", false}}},
		"by name":                    {in("{fields: [{family: IPv4, type: EchoRequest}]}"), []flow{{"db", "web", "ICMP/8", true}, {"db", "web", "ICMPv6/128", false}}},
		"type 0 is a type":           {in("{fields: [{type: EchoReply}]}"), []flow{{"db", "web", "ICMP/0", true}, {"db", "web", "ICMP/8", false}, {"db", "web", "ICMP/3", false}}},
		"type 0 by number":           {in("{fields: [{type: 0}]}"), []flow{{"db", "web", "ICMP/0", true}, {"db", "web", "ICMP/8", false}}},
		"type 255":                   {in("{fields: [{type: 255}]}"), []flow{{"db", "web", "ICMP/255", true}, {"db", "web", "ICMP/254", false}}},
		"the other family":           {in("{fields: [{family: IPv6, type: EchoRequest}, {family: IPv6, type: 135}]}"), []flow{{"db", "web", "ICMPv6/128", true}, {"db", "web", "ICMPv6/135", true}, {"db", "web", "ICMPv6/129", false}, {"db", "web", "ICMP/128", false}, {"db", "web", "ICMP/8", false}}},
		"two members":                {in("{fields: [{type: 8}]}, {fields: [{type: 13}]}"), []flow{{"db", "web", "ICMP/8", true}, {"db", "web", "ICMP/13", true}, {"db", "web", "ICMP/14", false}}},
		"as many as may be":          {in("{fields: [" + strings.TrimSuffix(many, ", ") + "]}"), []flow{{"db", "web", "ICMP/8", true}}},
		"with peers":                 {cnp("ingress: [{fromEndpoints: [{matchLabels: {app: db}}], icmps: [{fields: [{type: 8}]}]}]"), []flow{{"db", "web", "ICMP/8", true}, {"ops", "web", "ICMP/8", false}, {"db", "web", "TCP/8", false}}},
		"at egress":                  {cnp("egress: [{icmps: [{fields: [{type: EchoRequest}]}]}]"), []flow{{"web", "db", "ICMP/8", true}, {"web", "db", "TCP/80", false}, {"web", "out10", "ICMP/8", true}}},
		"denied at ingress":          {cnp("ingress: [{fromEntities: [all]}]\ningressDeny: [{icmps: [{fields: [{type: 0}]}]}]"), []flow{{"db", "web", "ICMP/0", false}, {"db", "web", "ICMP/8", true}, {"db", "web", "TCP/80", true}}},
		"denied at egress":           {cnp("egress: [{toEntities: [all]}]\negressDeny: [{icmps: [{fields: [{type: Timestamp}]}]}]"), []flow{{"web", "db", "ICMP/13", false}, {"web", "db", "ICMP/8", true}}},
		"an empty list says nothing": {cnp("ingress: [{fromEntities: [all], icmps: []}]"), []flow{{"db", "web", "ICMP/0", true}, {"db", "web", "TCP/80", true}}},
		"alone it is nobody":         {cnp("ingress: [{icmps: [], toPorts: []}]"), []flow{{"db", "web", "ICMP/8", false}}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.text, c.flows...) })
	}
	for text, want := range map[string]string{
		in("{fields: [{type: 256}]}"):                     "spec.ingress[0].icmps[0].fields[0].type: is 256; give a number from 0 to 255",
		in("{fields: [{type: -1}]}"):                      "type: is -1; give a number from 0 to 255",
		in("{fields: [{type: '256'}]}"):                   "type: is 256",
		in("{fields: [{type: 4294967304}]}"):              "cannot be read",
		in("{fields: [{}]}"):                              "type: is missing; give a number from 0 to 255 or a name such as EchoRequest",
		in("{fields: [{type: echoRequest}]}"):             `"echoRequest" is no type of ICMP; did you mean EchoRequest?`,
		in("{fields: [{type: PacketTooBig}]}"):            `"PacketTooBig" is a type of ICMPv6, not of ICMP; give the other family`,
		in("{fields: [{family: IPv6, type: Timestamp}]}"): `"Timestamp" is a type of ICMP, not of ICMPv6`,
		in("{fields: [{family: ipv6, type: 1}]}"):         `fields[0].family: "ipv6" is not known; give IPv4 or IPv6`,
		in("{fields: []}"):                                "icmps[0].fields: is empty",
		in("{fields: [" + many + "{type: 0}]}"):           "icmps[0].fields: has 41 members, the most is 40",
		in("{fields: [{type: 8, code: 0}]}"):              "fields[0].code: is not a field that exists here",
		cnp("egressDeny: [{icmps: [{fields: [{type: 8}]}], toPorts: [{ports: [{port: '80'}]}]}]"): "spec.egressDeny[0].icmps: stands beside toPorts; write them as two elements",
	} {
		ps, err := translate(text)
		require.ErrorContains(t, err, want)
		require.Empty(t, ps)
	}
	require.Equal(t, []types.Port{{Proto: 1, ICMPType: true}}, policies(t, in("{fields: [{type: EchoReply}]}"))[0].Rules[0].Ports)
}

func TestASelectorByALabelThatNoIdentityCarriesIsReported(t *testing.T) {
	objects, err := Decode([]byte(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web, pod-template-hash: a1}}
  ingress:
  - from:
    - podSelector: {matchExpressions: [{key: batch.kubernetes.io/job-completion-index, operator: Exists}]}
      namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
`), "p.yaml")
	require.NoError(t, err)
	tr, err := TranslateTraced(objects[0], Options{Labels: labels.DefaultFilter()})
	require.NoError(t, err)
	require.Len(t, tr.Missing, 2)
	require.ErrorContains(t, tr.Missing[0], "p.yaml:5: NetworkPolicy shop/p: spec.podSelector.matchLabels[pod-template-hash]: no identity carries the label pod-template-hash")
	require.ErrorContains(t, tr.Missing[1], "spec.ingress[0].from[0].podSelector.matchExpressions[0].key: no identity carries the label batch.kubernetes.io/job-completion-index")
	tr, err = TranslateTraced(objects[0], Options{})
	require.NoError(t, err)
	require.Empty(t, tr.Missing)
}
