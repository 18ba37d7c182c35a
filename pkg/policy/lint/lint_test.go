package lint

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

func pod(ns, name string, port string, more map[string]string) simulate.Pod {
	ls := map[string]string{"app": name}
	for k, v := range more {
		ls[k] = v
	}
	p := simulate.Pod{Name: ns + "/" + name, Labels: labels.PodLabels(labels.Pod{Namespace: ns, Cluster: "default", Labels: ls})}
	if port != "" {
		p.NamedPorts = types.NamedPorts{{Name: port, Proto: wtypes.ProtoTCP}: 8080}
	}
	return p
}

// shop is a web server with a database, and an operator's console.
func shop() World {
	return World{
		Pods:       []simulate.Pod{pod("shop", "web", "http", map[string]string{"tier": "front"}), pod("shop", "db", "sql", nil), pod("ops", "console", "", nil)},
		Namespaces: []Namespace{{Name: "shop"}, {Name: "ops", Labels: map[string]string{"team": "ops"}}},
	}
}

const (
	np   = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: NAME, namespace: shop}\nspec:\n"
	tier = "apiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: NAME}\nspec:\n  tier: Admin\n  priority: 1\n  subject: {namespaces: {}}\n"
	cnp  = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: NAME, namespace: shop}\nspec:\n"
)

// objects decodes specs, each with the head of its dialect.
func objects(t *testing.T, specs ...string) []k8s.Object {
	t.Helper()
	var out []k8s.Object
	for i, s := range specs {
		os, err := k8s.Decode([]byte(strings.Replace(s, "NAME", string(rune('a'+i)), 1)), "")
		require.NoError(t, err)
		out = append(out, os...)
	}
	return out
}

func codes(fs []Finding) string {
	var out []string
	for _, f := range fs {
		out = append(out, f.Code.ID)
	}
	return strings.Join(out, " ")
}

func TestFindings(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		specs      []string
	}{
		{"a default deny of each dialect is meant", "", []string{
			np + "  podSelector: {}\n  policyTypes: [Ingress, Egress]\n",
			cnp + "  endpointSelector: {}\n  ingress: [{}]\n  egress: [{}]\n"}},
		{"an allow of everything is meant where it is written so", "", []string{
			np + "  podSelector: {}\n  policyTypes: [Ingress]\n  ingress: [{}]\n"}},
		{"an empty list of peers beside one with members is no trap", "", []string{
			cnp + "  endpointSelector: {}\n  ingress: [{fromEndpoints: [{}], fromCIDR: []}]\n"}},
		{"a denying {} denies nobody", "WL103", []string{
			cnp + "  endpointSelector: {}\n  ingress: [{fromEndpoints: [{}]}]\n  ingressDeny: [{}]\n"}},
		{"a {} beside other elements adds nothing", "WL103", []string{
			cnp + "  endpointSelector: {}\n  ingress: [{fromEndpoints: [{}]}, {}]\n"}},
		{"policyTypes missing is harmless with ingress rules", "", []string{
			np + "  podSelector: {}\n  ingress: [{from: [{podSelector: {}}]}]\n  egress: [{to: [{podSelector: {}}]}]\n"}},
		{"and with an explicit ingress: []", "", []string{
			np + "  podSelector: {}\n  ingress: []\n  egress: [{to: [{podSelector: {}}]}]\n"}},
		{"port 53 of UDP and TCP", "", []string{
			np + "  podSelector: {}\n  policyTypes: [Egress]\n  egress: [{ports: [{port: 53}, {port: 53, protocol: UDP}]}]\n"}},
		{"port 53 with protocol TCP is meant", "", []string{
			np + "  podSelector: {}\n  policyTypes: [Egress]\n  egress: [{ports: [{port: 53, protocol: TCP}]}]\n"}},
		{"port 53 of any protocol in the other dialect", "", []string{
			cnp + "  endpointSelector: {}\n  egress: [{toPorts: [{ports: [{port: '53'}]}]}]\n"}},
		{"namespaceSelector {} beside an ipBlock", "", []string{
			np + "  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {}}, {ipBlock: {cidr: 0.0.0.0/0}}]}]\n"}},
		{"namespaceSelector {} with a podSelector", "", []string{
			np + "  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {}, podSelector: {}}]}]\n"}},
		{"a deny beside an allow of another policy", "", []string{
			cnp + "  endpointSelector: {}\n  ingressDeny: [{fromEntities: [world]}]\n",
			np + "  podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {}}]}]\n"}},
		{"a deny that says what its default is", "", []string{
			cnp + "  endpointSelector: {}\n  ingressDeny: [{fromEntities: [world]}]\n  enableDefaultDeny: {ingress: false}\n"}},
		{"a deny alone, as the allow is for other pods", "WL109", []string{
			cnp + "  endpointSelector: {matchLabels: {app: web}}\n  ingressDeny: [{fromEntities: [world]}]\n",
			np + "  podSelector: {matchLabels: {app: db}}\n  ingress: [{from: [{podSelector: {}}]}]\n"}},
		{"an except and an allow inside it", "", []string{
			cnp + "  endpointSelector: {}\n  egress: [{toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}]}, {toCIDR: [10.1.2.0/24]}]\n"}},
		{"an except that another peer of the rule covers", "WL111", []string{
			cnp + "  endpointSelector: {}\n  egress: [{toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}, {cidr: 10.1.0.0/16}]}]\n"}},
		{"an except that world covers on another port", "", []string{
			cnp + "  endpointSelector: {}\n  egress: [{toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}], toPorts: [{ports: [{port: '80'}]}]}, {toEntities: [world], toPorts: [{ports: [{port: '81'}]}]}]\n"}},
		{"a deny with an except, which is beside the point", "", []string{
			cnp + "  endpointSelector: {}\n  egress: [{toEntities: [world]}]\n  egressDeny: [{toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}]}]\n"}},
		{"a selector that contradicts itself", "WL113", []string{
			np + "  podSelector: {matchLabels: {app: web}, matchExpressions: [{key: app, operator: DoesNotExist}]}\n  policyTypes: [Ingress]\n"}},
		{"a selector that only leaves out", "", []string{
			np + "  podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [x]}, {key: app, operator: Exists}]}\n  policyTypes: [Ingress]\n"}},
		{"a namespace of a peer that is not there", "WL201", []string{
			np + "  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {matchLabels: {team: opps}}}]}]\n"}},
		{"entities are nobody's labels", "", []string{
			cnp + "  endpointSelector: {}\n  ingress: [{fromEntities: [cluster]}, {fromEntities: [world]}]\n"}},
		{"a port name without a protocol, given for one of them", "", []string{
			cnp + "  endpointSelector: {matchLabels: {app: web}}\n  ingress: [{fromEntities: [world], toPorts: [{ports: [{port: http}]}]}]\n"}},
		{"a port name without a protocol, given for none", "WL205", []string{
			cnp + "  endpointSelector: {matchLabels: {app: web}}\n  ingress: [{fromEntities: [world], toPorts: [{ports: [{port: htp}]}]}]\n"}},
		{"a port name of a tier, which has no protocol", "", []string{
			tier + "  ingress: [{action: Accept, from: [{namespaces: {}}], protocols: [{destinationNamedPort: http}]}]\n"}},
		{"a port name of UDP", "WL205", []string{
			np + "  podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {}}], ports: [{port: http, protocol: UDP}]}]\n"}},
		{"a port name that one of the pods gives", "", []string{
			np + "  podSelector: {}\n  ingress: [{from: [{podSelector: {}}], ports: [{port: http}]}]\n"}},
		{"a port name of the destination", "", []string{
			np + "  podSelector: {matchLabels: {app: web}}\n  policyTypes: [Egress]\n  egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: sql}]}]\n"}},
		{"a port name of the source, at egress", "WL205", []string{
			np + "  podSelector: {matchLabels: {app: web}}\n  policyTypes: [Egress]\n  egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: http}]}]\n"}},
		{"labels that happen to go together shadow nothing", "", []string{
			np + "  podSelector: {}\n  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}, {from: [{podSelector: {matchLabels: {tier: front}}}]}]\n"}},
		{"what a selector leaves out may come", "", []string{
			np + "  podSelector: {}\n  ingress: [{from: [{podSelector: {matchExpressions: [{key: blue, operator: DoesNotExist}]}}]}, {from: [{podSelector: {matchLabels: {app: web}}}]}]\n"}},
		{"a narrower allow beside the wider one", "WL302", []string{
			np + "  podSelector: {}\n  ingress: [{from: [{podSelector: {}}]}, {from: [{podSelector: {matchLabels: {tier: front}}}]}]\n"}},
		{"in two policies the later one by name", "WL302", []string{
			np + "  podSelector: {}\n  ingress: [{from: [{podSelector: {}}]}]\n",
			np + "  podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]\n"}},
		{"two allows that together cover a third", "WL302", []string{
			np + "  podSelector: {}\n  ingress: [{ports: [{port: 80, endPort: 89}]}, {ports: [{port: 90, endPort: 99}]}, {ports: [{port: 85, endPort: 95}]}]\n"}},
		{"an allow of more than a deny", "", []string{
			cnp + "  endpointSelector: {}\n  ingress: [{fromEndpoints: [{}]}]\n  ingressDeny: [{fromEndpoints: [{matchLabels: {app: db}}]}]\n"}},
		{"an allow of less than a deny", "WL301", []string{
			cnp + "  endpointSelector: {}\n  ingress: [{fromEndpoints: [{matchLabels: {app: db}}]}, {fromEntities: [world]}]\n  ingressDeny: [{fromEndpoints: [{}]}]\n"}},
		{"a block inside another", "WL302", []string{
			cnp + "  endpointSelector: {}\n  egress: [{toCIDR: [10.0.0.0/8]}, {toCIDR: [10.1.0.0/16]}]\n"}},
		{"all ports beside the last one and the rest but one", "", []string{
			np + "  podSelector: {}\n  ingress: [{ports: [{port: 65535}]}, {ports: [{port: 1, endPort: 65535}]}]\n"}},
		{"a range beside its ends", "", []string{
			np + "  podSelector: {}\n  ingress: [{ports: [{port: 80}, {port: 82}]}, {ports: [{port: 80, endPort: 82}]}]\n"}},
		{"ICMP types beside each other", "", []string{
			cnp + "  endpointSelector: {}\n  ingress: [{icmps: [{fields: [{type: 0}]}]}, {icmps: [{fields: [{type: 1}, {type: 0}]}]}]\n"}},
		{"a named port of the destination beside what it is for some", "", []string{
			np + "  podSelector: {matchLabels: {app: db}}\n  policyTypes: [Egress]\n  egress: [{to: [{namespaceSelector: {}, podSelector: {}}], ports: [{port: 8080}]}, {to: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: http}]}]\n"}},
		{"what a deny of the tier above takes, unless it is passed", "", []string{
			tier + "  ingress: [{action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: console}}}}]}, {action: Deny, from: [{namespaces: {}}]}]\n",
			np + "  podSelector: {}\n  ingress: [{from: [{podSelector: {matchLabels: {tier: front}}}]}]\n"}},
		{"what a deny of the tier above takes, without a pass", "WL301", []string{
			tier + "  ingress: [{action: Deny, from: [{namespaces: {}}]}]\n",
			np + "  podSelector: {}\n  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]\n"}},
		{"in a tier the first rule decides", "WL302", []string{
			tier + "  ingress: [{action: Accept, from: [{namespaces: {}}]}, {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]}]\n"}},
		{"a subject and a peer of a tier that nothing matches", "WL202 WL203", []string{
			tier + "  ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: wep}}}}]}]\n",
			strings.Replace(tier, "namespaces: {}", "pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: wep}}}", 1) + "  ingress: [{action: Deny, from: [{namespaces: {}}]}]\n"}},
		{"a block of pods and the same of addresses outside", "", []string{
			np + "  podSelector: {}\n  policyTypes: [Egress]\n  egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fs := Run(objects(t, tt.specs...), shop(), k8s.Options{ClusterName: "default"})
			require.Equal(t, tt.want, codes(fs), "%v", fs)
		})
	}
}

// The trap of addresses needs pods that have some.
func TestCIDROfPods(t *testing.T) {
	w := shop()
	for i := range w.Pods {
		w.Pods[i].Addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i), 9})}
	}
	w.Nodes = []simulate.Host{{Name: "one", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Labels: labels.NewLabelArray(labels.Reserved(labels.NameHost))}}
	for cidr, want := range map[string]string{
		"10.1.0.9/32": "WL110", "10.1.1.0/24": "WL110", "192.0.2.1/32": "WL110",
		"10.0.0.0/8": "", "192.0.2.0/24": "", "10.1.200.0/24": "", "0.0.0.0/0": "",
	} {
		fs := Run(objects(t, cnp+"  endpointSelector: {}\n  egress: [{toCIDR: ['"+cidr+"']}]\n"), w, k8s.Options{ClusterName: "default"})
		require.Equal(t, want, codes(fs), cidr)
	}
	fs := Run(objects(t, np+"  podSelector: {}\n  policyTypes: [Egress]\n  egress: [{to: [{ipBlock: {cidr: 10.1.0.9/32}}]}]\n"), w, k8s.Options{ClusterName: "default"})
	require.Empty(t, fs, "an ipBlock matches pods")
}

// Without pods nothing is said of what selectors match; shadows are found all the same.
func TestWithoutAWorld(t *testing.T) {
	fs := Run(objects(t, np+"  podSelector: {matchLabels: {app: x}}\n  ingress: [{from: [{podSelector: {}}]}, {from: [{podSelector: {matchLabels: {app: y}}}], ports: [{port: name}]}]\n"),
		World{}, k8s.Options{})
	require.Equal(t, "WL302", codes(fs))

	for name, specs := range map[string][]string{
		"a named port beside a range that has almost all": {
			np + "  podSelector: {}\n  ingress: [{ports: [{port: 9000, endPort: 65535}]}, {ports: [{port: http}]}]\n"},
		"everybody beside everybody but pods elsewhere": {
			cnp + "  endpointSelector: {}\n  ingress: [{fromEndpoints: [{}]}, {fromEntities: [world, host, remote-node, kube-apiserver, init, health, unmanaged, ingress]}, {fromEntities: [all]}]\n"},
	} {
		require.Empty(t, Run(objects(t, specs...), World{}, k8s.Options{}), name)
	}
}

// Where too many kinds of pods could come, a rule is not called shadowed.
func TestTooManyKindsOfPods(t *testing.T) {
	for _, keys := range []int{3, 9} {
		spec := np + "  podSelector: {}\n  ingress:\n"
		for i := range keys {
			spec += fmt.Sprintf("  - from: [{podSelector: {matchExpressions: [{key: k%d, operator: DoesNotExist}]}}]\n", i)
		}
		spec += "  - from: [{podSelector: {}}]\n"
		require.Empty(t, Run(objects(t, spec), World{}, k8s.Options{}), "a pod with all %d labels needs the last rule", keys)
	}
}

func TestAnnotationSilencesACode(t *testing.T) {
	spec := np + "  podSelector: {}\n  ingress: [{from: [], ports: [{port: 53}]}]\n"
	require.Equal(t, "WL104 WL107", codes(Run(objects(t, spec), shop(), k8s.Options{})))
	spec = strings.Replace(spec, "namespace: shop", "namespace: shop, annotations: {"+IgnoreAnnotation+": 'WL107, WL999'}", 1)
	require.Equal(t, "WL003 WL104", codes(Run(objects(t, spec), shop(), k8s.Options{})))
}

func TestCodesAreUniqueAndInOrder(t *testing.T) {
	last := ""
	for _, c := range Codes() {
		require.Greater(t, c.ID, last)
		require.Regexp(t, `^WL[0-9]{3}$`, c.ID)
		last = c.ID
	}
}

// docs/lint.md lists every code as the program describes it.
func TestCodesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/lint.md")
	require.NoError(t, err)
	for _, c := range Codes() {
		require.Contains(t, string(text), fmt.Sprintf("| %s | %s | %s |\n", c.ID, c.Name, c.Short))
	}
	require.Equal(t, len(Codes()), strings.Count(string(text), "\n| WL"))
}
