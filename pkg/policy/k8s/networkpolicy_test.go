package k8s

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/policy/types"
)

// np returns a NetworkPolicy of namespace shop that selects app=web, with more spec.
func np(spec string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: shop}\n" +
		"spec:\n  podSelector: {matchLabels: {app: web}}\n  " + strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ") + "\n"
}

func TestNetworkPolicyDirections(t *testing.T) {
	for name, c := range map[string]struct {
		spec            string
		ingress, egress bool
		rules           int
	}{
		"without types and rules it isolates ingress":                   {"", true, false, 0},
		"without types an egress rule isolates both":                    {"egress: [{}]", true, true, 1},
		"without types an empty egress list isolates ingress only":      {"egress: []", true, false, 0},
		"an empty list of types is no list":                             {"policyTypes: []\negress: [{}]", true, true, 1},
		"type Egress alone leaves ingress alone":                        {"policyTypes: [Egress]", false, true, 0},
		"ingress rules under type Egress mean nothing":                  {"policyTypes: [Egress]\ningress: [{}]", false, true, 0},
		"egress rules under type Ingress mean nothing":                  {"policyTypes: [Ingress]\negress: [{}]", true, false, 0},
		"null lists are missing lists, as for the Kubernetes API":       {"policyTypes: null\ningress: null\negress: null", true, false, 0},
		"both types and both lists":                                     {"policyTypes: [Ingress, Egress]\ningress: [{}]\negress: [{}, {}]", true, true, 3},
		"a type given twice is that type":                               {"policyTypes: [Ingress, Ingress]\ningress: [{}]", true, false, 1},
		"both types without lists isolate both and allow nothing":       {"policyTypes: [Ingress, Egress]", true, true, 0},
		"a status of an older Kubernetes is skipped (the spec is kept)": {"ingress: [{}]", true, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			text := np(c.spec)
			if strings.Contains(name, "status") {
				text += "status: {conditions: []}\n"
			}
			p := policies(t, text)[0]
			require.Equal(t, c.ingress, p.IsolatesIngress)
			require.Equal(t, c.egress, p.IsolatesEgress)
			require.Len(t, p.Rules, c.rules)
		})
	}
}

// B15: a missing list, an empty list and a list with an empty member.
func TestB15_NetworkPolicyEmptyLists(t *testing.T) {
	check(t, np("ingress: [{from: []}]"), flow{"db", "web", "TCP/80", true}, flow{"out10", "web", "TCP/80", true})
	check(t, np("ingress: [{from: [], ports: []}]"), flow{"db", "web", "SCTP/80", true}, flow{"node", "web", "UDP/1", true})
	check(t, np("ingress: []"), flow{"db", "web", "TCP/80", false}, flow{"out10", "web", "TCP/80", false})
	check(t, np("ingress: [{}]"), flow{"db", "web", "TCP/80", true}, flow{"out10", "web", "TCP/80", true})
	check(t, np("ingress: [{ports: [{port: 80}]}]"), flow{"out10", "web", "TCP/80", true}, flow{"out10", "web", "UDP/80", false})
	check(t, np("policyTypes: [Egress]\negress: []"), flow{"web", "db", "TCP/80", false}, flow{"db", "web", "TCP/80", true})
	check(t, np("policyTypes: [Egress]\negress: [{to: []}]"), flow{"web", "db", "TCP/80", true}, flow{"web", "out10", "TCP/80", true})
	require.Nil(t, policies(t, np("ingress: [{from: []}]"))[0].Rules[0].Peers, "nil is anybody")
}

// B03: an except also holds in the widest block, with and without ports, and only
// takes away from its own block.
func TestB03_ExceptOfTheWidestBlock(t *testing.T) {
	for _, ports := range []string{"", ", ports: [{port: 80}]"} {
		check(t, np("policyTypes: [Egress]\negress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [203.0.113.10/32]}}]"+ports+"}]"),
			flow{"web", "out10", "TCP/80", false}, flow{"web", "out200", "TCP/80", true}, flow{"web", "db", "TCP/80", true},
			flow{"web6", "out6", "TCP/80", false})
		check(t, np("policyTypes: [Egress]\negress: [{to: [{ipBlock: {cidr: '::/0', except: ['2001:db8::10/128']}}]"+ports+"}]"),
			flow{"web6", "out6", "TCP/80", false}, flow{"web6", "out6b", "TCP/80", true}, flow{"web", "out10", "TCP/80", false})
		check(t, np("policyTypes: [Egress]\negress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [203.0.113.10/32]}}]"+ports+
			"}, {to: [{ipBlock: {cidr: 203.0.113.10/32}}]}]"),
			flow{"web", "out10", "TCP/80", true}, flow{"web", "out200", "TCP/80", true})
	}
}

// B16: a namespace selector matches pods, whatever it asks for, never the outside
// or a node.
func TestB16_NamespaceSelectorsMatchPodsOnly(t *testing.T) {
	for _, selector := range []string{
		"{}", "{matchExpressions: [{key: none, operator: DoesNotExist}]}", "{matchExpressions: [{key: team, operator: NotIn, values: [green]}]}",
	} {
		for _, pods := range []string{"", ", podSelector: {}", ", podSelector: {matchExpressions: [{key: none, operator: DoesNotExist}]}"} {
			check(t, np("policyTypes: [Egress]\negress: [{to: [{namespaceSelector: "+selector+pods+"}]}]"),
				flow{"web", "ops", "TCP/80", true}, flow{"web", "db", "TCP/80", true}, flow{"web", "out10", "TCP/80", false},
				flow{"web", "host", "TCP/80", false}, flow{"web", "node", "TCP/80", false})
			check(t, np("ingress: [{from: [{namespaceSelector: "+selector+pods+"}]}]"),
				flow{"ops", "web", "TCP/80", true}, flow{"out10", "web", "TCP/80", false}, flow{"node", "web", "TCP/80", false},
				flow{"host", "web", "TCP/80", true}) // by the local node's own rule
		}
	}
}

// G04: with an ipBlock as the only peer nobody comes in by namespace or cluster.
func TestG04_AnIPBlockIsNoNamespace(t *testing.T) {
	text := np("ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}]}]")
	check(t, text, flow{"db", "web", "TCP/80", false}, flow{"ops", "web", "TCP/80", false}, flow{"out10", "web", "TCP/80", true})
	peers := policies(t, text)[0].Rules[0].Peers
	require.Len(t, peers, 1)
	require.Nil(t, peers[0].Labels)
	require.True(t, peers[0].CIDR.Pods)
}

// B01 at the dialect: an ipBlock also means the pods inside it.
func TestB01_AnIPBlockMatchesPods(t *testing.T) {
	check(t, np("policyTypes: [Egress]\negress: [{to: [{ipBlock: {cidr: 10.42.1.3/32}}], ports: [{port: 80}]}]"),
		flow{"web", "db", "TCP/80", true}, flow{"web", "ops", "TCP/80", false}, flow{"web", "db", "TCP/81", false})
}

func TestNetworkPolicyPeersAndPorts(t *testing.T) {
	for name, c := range map[string]struct {
		spec  string
		flows []flow
	}{
		"a pod selector alone stays in the policy's namespace": {
			"ingress: [{from: [{podSelector: {}}]}]",
			[]flow{{"db", "web", "TCP/80", true}, {"ops", "web", "TCP/80", false}}},
		"a namespace selector looks at the namespace's labels": {
			"ingress: [{from: [{namespaceSelector: {matchLabels: {team: blue}}}]}]",
			[]flow{{"db", "web", "TCP/80", false}, {"ops", "web", "TCP/80", true}}},
		"both selectors of one peer must match": {
			"ingress: [{from: [{namespaceSelector: {matchLabels: {team: blue}}, podSelector: {matchLabels: {app: db}}}]}]",
			[]flow{{"db", "web", "TCP/80", false}, {"ops", "web", "TCP/80", false}}},
		"one of two peers must match": {
			"ingress: [{from: [{namespaceSelector: {matchLabels: {team: blue}}}, {podSelector: {matchLabels: {app: db}}}]}]",
			[]flow{{"db", "web", "TCP/80", true}, {"ops", "web", "TCP/80", true}, {"out10", "web", "TCP/80", false}}},
		"a port without a protocol is TCP": {
			"ingress: [{ports: [{port: 80}]}]", []flow{{"db", "web", "TCP/80", true}, {"db", "web", "UDP/80", false}}},
		"a protocol without a port is all its ports": {
			"ingress: [{ports: [{protocol: SCTP}]}]", []flow{{"db", "web", "SCTP/9", true}, {"db", "web", "TCP/9", false}}},
		"a port that says nothing is all of TCP": {
			"ingress: [{ports: [{}]}]", []flow{{"db", "web", "TCP/9", true}, {"db", "web", "UDP/9", false}}},
		"endPort is the last port of the range": {
			"ingress: [{ports: [{port: 80, endPort: 90}]}]",
			[]flow{{"db", "web", "TCP/79", false}, {"db", "web", "TCP/80", true}, {"db", "web", "TCP/90", true}, {"db", "web", "TCP/91", false}}},
		"endPort may be the port itself": {
			"ingress: [{ports: [{port: 80, endPort: 80}]}]", []flow{{"db", "web", "TCP/80", true}, {"db", "web", "TCP/81", false}}},
		"a port's name is looked up at the destination and by protocol": {
			"ingress: [{ports: [{port: http}]}]",
			[]flow{{"db", "web", "TCP/8080", true}, {"db", "web", "UDP/8080", false}, {"db", "web", "TCP/80", false}}},
		"B26: a rule on SCTP says nothing of TCP, and isolates": {
			"ingress: [{ports: [{protocol: SCTP, port: 3301}]}]",
			[]flow{{"db", "web", "TCP/3301", false}, {"db", "web", "SCTP/3301", true}, {"db", "web", "SCTP/3302", false}}},
		"bits after the prefix are cut off": {
			"ingress: [{from: [{ipBlock: {cidr: 203.0.113.77/24}}]}]", []flow{{"out10", "web", "TCP/1", true}, {"db", "web", "TCP/1", false}}},
	} {
		t.Run(name, func(t *testing.T) { check(t, np(c.spec), c.flows...) })
	}
}

func TestNetworkPolicyRefusals(t *testing.T) {
	peer := func(s string) string { return np("ingress: [{from: [" + s + "]}]") }
	port := func(s string) string { return np("ingress: [{ports: [" + s + "]}]") }
	for name, c := range map[string]struct{ text, want string }{
		"misspelt field":        {np("ingres: []"), "p.yaml:6: NetworkPolicy shop/p: spec.ingres: is not a field that exists here; did you mean ingress?"},
		"field of the other":    {np("ingress: [{to: []}]"), "spec.ingress[0].to: is not a field that exists here; there are from, ports"},
		"empty peer":            {peer("{}"), "spec.ingress[0].from[0]: selects nobody; give podSelector"},
		"null peer":             {peer("null"), "spec.ingress[0].from[0]: is null"},
		"null rule":             {np("ingress: [null]"), "spec.ingress[0]: is null"},
		"null in a list":        {np("ingress:\n-"), "p.yaml:7: NetworkPolicy shop/p: spec.ingress[0]: is null"},
		"block and selector":    {peer("{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}"), "write them as two peers"},
		"no prefix":             {peer("{ipBlock: {cidr: ten}}"), `spec.ingress[0].from[0].ipBlock.cidr: "ten" is no address prefix`},
		"empty prefix":          {peer("{ipBlock: {}}"), `.ipBlock.cidr: "" is no address prefix`},
		"prefix without length": {peer("{ipBlock: {cidr: 10.0.0.1}}"), `write 10.0.0.1/32`},
		"except outside":        {peer("{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}"), "except[0]: 11.0.0.0/16 does not lie inside the block 10.0.0.0/8"},
		"except of all":         {peer("{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}"), "does not lie inside"},
		"except of the family":  {peer("{ipBlock: {cidr: 0.0.0.0/0, except: ['::/1']}}"), "is not of the family"},
		"operator":              {peer("{podSelector: {matchExpressions: [{key: a, operator: in, values: [b]}]}}"), `operator: "in" is not known`},
		"In without values":     {peer("{podSelector: {matchExpressions: [{key: a, operator: In}]}}"), "values: is empty; In needs"},
		"Exists with values":    {peer("{podSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}"), "values: has values, which Exists"},
		"label key":             {peer("{podSelector: {matchLabels: {'k8s:a': b}}}"), "matchLabels[k8s:a]: is no label key"},
		"label value":           {peer("{podSelector: {matchLabels: {a: 'b c'}}}"), `"b c" is no label value`},
		"number as label":       {peer("{podSelector: {matchLabels: {a: 5}}}"), `write "5" in quotes`},
		"yes as label":          {peer("{podSelector: {matchLabels: {a: yes}}}"), `write "yes" in quotes`},
		"port 0":                {port("{port: 0}"), "ports[0].port: is 0; give a number from 1 to 65535"},
		"port 65536":            {port("{port: 65536}"), "is 65536"},
		"port name":             {port("{port: Http_}"), `"Http_" is neither a number nor a port's name`},
		"number as text":        {port("{port: '80'}"), `ports[0].port: "80" is text; write the number without quotes`},
		"endPort below":         {port("{port: 80, endPort: 79}"), "endPort: is 79; give a number from port, 80, to 65535"},
		"endPort of a name":     {port("{port: http, endPort: 90}"), "endPort: is 90, but port is the name"},
		"endPort alone":         {port("{endPort: 90}"), "there is no port"},
		"protocol":              {port("{protocol: ICMP, port: 1}"), `protocol: "ICMP" is not known; give TCP, UDP or SCTP`},
		"protocol in small":     {port("{protocol: tcp}"), "write it in capitals: TCP"},
		"type":                  {np("policyTypes: [ingress]"), `policyTypes[0]: "ingress" is not known`},
		"list for a mapping":    {np("ingress: {}"), "spec.ingress: is a mapping; give a list"},
		"text for a list":       {np("ingress: all"), `spec.ingress: is the text "all"; give a list`},
		"field given twice":     {np("ingress: []\ningress: [{}]"), "spec.ingress: is given twice, first in line 6"},
		"API version":           {strings.Replace(np(""), "networking.k8s.io/v1", "networking.k8s.io/v1beta1", 1), `apiVersion: "networking.k8s.io/v1beta1" is not known for this kind; give networking.k8s.io/v1`},
		"no name":               {strings.Replace(np(""), "name: p, ", "", 1), `metadata.name: "" is no name`},
		"name":                  {strings.Replace(np(""), "name: p", "name: ../p", 1), `metadata.name: "../p" is no name`},
		"namespace":             {strings.Replace(np(""), "namespace: shop", "namespace: a.b", 1), `metadata.namespace: "a.b" is no name`},
	} {
		t.Run(name, func(t *testing.T) {
			ps, err := translate(c.text)
			require.ErrorContains(t, err, c.want)
			require.Empty(t, ps)
		})
	}
}

func TestAPolicyWithoutNamespaceIsInDefault(t *testing.T) {
	p := policies(t, strings.Replace(np("ingress: [{from: [{podSelector: {}}]}]"), ", namespace: shop", "", 1))[0]
	require.Equal(t, "NetworkPolicy/default/p", p.Resource.ID())
	require.Contains(t, p.Subject.String(), "k8s:io.kubernetes.pod.namespace=default")
	require.Contains(t, p.Rules[0].Peers[0].Labels.String(), "k8s:io.kubernetes.pod.namespace=default")
}

func TestRulesKnowTheirLines(t *testing.T) {
	text := "# shop\n---\n" + np("policyTypes: [Ingress, Egress]\ningress:\n- from: []\n\n- ports:\n  - port: 80\negress:\n- {}")
	p := policies(t, text)[0]
	require.Equal(t, types.Resource{Kind: "NetworkPolicy", Namespace: "shop", Name: "p", File: "p.yaml", Line: 3}, p.Resource)
	got := []string{}
	for _, r := range p.Rules {
		got = append(got, r.Ref.String())
	}
	require.Equal(t, []string{
		"NetworkPolicy shop/p ingress[0] (p.yaml:10)", "NetworkPolicy shop/p ingress[1] (p.yaml:12)", "NetworkPolicy shop/p egress[0] (p.yaml:15)",
	}, got)
}

// Pods of another cluster with the same labels are no peers of this one's policies.
func TestPeersAreOfThisCluster(t *testing.T) {
	for _, text := range []string{np("ingress: [{from: [{namespaceSelector: {}}]}]"), cnp("ingress: [{fromEndpoints: [{}]}]"),
		cnp("ingress: [{fromEntities: [cluster]}]"), ccnp("ingress: [{fromEndpoints: [{}]}]")} {
		objects, err := Decode([]byte(text), "")
		require.NoError(t, err)
		for name, allowed := range map[string]bool{cluster: true, "green-1": false} {
			ps, err := TranslateAll(objects, Options{ClusterName: name})
			require.NoError(t, err)
			ask(t, ps, []flow{{"db", "web", "TCP/80", allowed}})
		}
	}
}
