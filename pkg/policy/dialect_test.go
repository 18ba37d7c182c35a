package policy_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Tests of this file are named like those of failures_test.go, and begin with
// the YAML that the user wrote.

// in translates documents for a world and gives everybody numbers. The cluster
// name is that of the world's pods.
func in(t *testing.T, w *oracle.World, clusterName string, mode types.Mode, documents ...string) *cluster {
	t.Helper()
	var policies []*types.Policy
	for _, d := range documents {
		objects, err := k8s.Decode([]byte(d), "p.yaml")
		require.NoError(t, err)
		ps, err := k8s.TranslateAll(objects, k8s.Options{ClusterName: clusterName})
		require.NoError(t, err)
		policies = append(policies, ps...)
	}
	return newCluster(w, policies, mode)
}

// networkPolicy isolates every pod of a namespace as its types and rules say.
func networkPolicy(namespace, spec string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: " + namespace + "}\n" +
		"spec: {podSelector: {}, " + spec + "}\n"
}

const denyAll = "policyTypes: [Ingress, Egress]"

func TestB03_ExceptOfACatchAllBlockIsDenied(t *testing.T) {
	for family, at := range map[string]struct{ all, except, inside, outside string }{
		"IPv4": {"0.0.0.0/0", "203.0.113.10/32", "203.0.113.10", "203.0.113.200"},
		"IPv6": {"::/0", "2001:db8::10/128", "2001:db8::10", "2001:db8:ffff::7"},
	} {
		for _, ports := range []string{"", ", ports: [{port: 80}]"} {
			t.Run(family+ports, func(t *testing.T) {
				block := fmt.Sprintf("{to: [{ipBlock: {cidr: '%s', except: ['%s']}}]%s}", at.all, at.except, ports)
				c := in(t, office(), "default", types.ModeDefault, networkPolicy("x", "policyTypes: [Egress], egress: ["+block+"]"))
				require.Equal(t, types.Deny, c.verdict(t, types.Egress, at.inside, wtypes.ProtoTCP, 80))
				require.Equal(t, types.Allow, c.verdict(t, types.Egress, at.outside, wtypes.ProtoTCP, 80))

				again := fmt.Sprintf("{to: [{ipBlock: {cidr: '%s'}}]%s}", at.except, ports)
				c = in(t, office(), "default", types.ModeDefault, networkPolicy("x", "policyTypes: [Egress], egress: ["+block+","+again+"]"))
				require.Equal(t, types.Allow, c.verdict(t, types.Egress, at.inside, wtypes.ProtoTCP, 80), "rules are a union")
				require.Equal(t, types.Allow, c.verdict(t, types.Egress, at.outside, wtypes.ProtoTCP, 80))
			})
		}
	}
}

// The block and its except also cover pods, each by the prefix of its address.
func TestB03_ExceptIsTakenOutForPodsToo(t *testing.T) {
	c := in(t, office(), "default", types.ModeDefault, networkPolicy("x",
		"policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.2/32]}}]}]"))
	require.Equal(t, types.Deny, c.verdict(t, types.Egress, "10.0.0.2", wtypes.ProtoTCP, 80))
	require.Equal(t, types.Allow, c.verdict(t, types.Egress, "10.0.0.3", wtypes.ProtoTCP, 80))
}

func TestB16_EveryNamespaceIsNotTheWorld(t *testing.T) {
	for dir, spec := range map[types.Direction]string{
		types.Egress:  "policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}}]}]",
		types.Ingress: "policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}}]}]",
	} {
		c := in(t, office(), "default", types.ModeDefault, networkPolicy("x", spec))
		for _, out := range []string{"203.0.113.10", "2001:db8::10", "10.0.1.2", "fd00:1::2"} {
			require.Equal(t, types.Deny, c.verdict(t, dir, out, wtypes.ProtoTCP, 80), out)
		}
		for _, pod := range []string{"10.0.0.2", "10.0.0.3", "fd00::3"} {
			require.Equal(t, types.Allow, c.verdict(t, dir, pod, wtypes.ProtoTCP, 80), pod)
		}
		v, kind := c.ask(t, dir, "10.0.1.1", wtypes.ProtoTCP, 80)
		if dir == types.Egress {
			require.Equal(t, types.Deny, v)
			continue
		}
		require.Equal(t, types.Allow, v)
		require.Equal(t, types.KindLocalNode, kind, "by the local-node rule, not by the selector")
	}
}

func TestB22_TheLocalNodeReachesItsPodsAndARemoteOneDoesNot(t *testing.T) {
	for name, at := range map[string]struct {
		mode      types.Mode
		documents []string
	}{
		"deny all ingress":     {types.ModeDefault, []string{networkPolicy("x", "policyTypes: [Ingress]")}},
		"deny all, egress too": {types.ModeDefault, []string{networkPolicy("x", denyAll)}},
		"always, deny all":     {types.ModeAlways, []string{networkPolicy("x", denyAll)}},
		"always, no policy":    {types.ModeAlways, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := in(t, office(), "default", at.mode, at.documents...)
			for _, host := range []string{"10.0.1.1", "fd00:1::1"} {
				v, kind := c.ask(t, types.Ingress, host, wtypes.ProtoTCP, 80)
				require.Equal(t, types.Allow, v, host)
				require.Equal(t, types.KindLocalNode, kind)
			}
			for _, remote := range []string{"10.0.1.2", "fd00:1::2"} {
				require.Equal(t, types.Deny, c.verdict(t, types.Ingress, remote, wtypes.ProtoTCP, 80), remote)
			}
		})
	}
	const denyHost = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: c, namespace: x}\n" +
		"spec: {endpointSelector: {}, ingressDeny: [{fromEntities: [host]}]}\n"
	c := in(t, office(), "default", types.ModeDefault, networkPolicy("x", denyAll), denyHost)
	require.Equal(t, types.Deny, c.verdict(t, types.Ingress, "10.0.1.1", wtypes.ProtoTCP, 80), "an explicit deny overrides")
	require.Equal(t, types.Deny, c.verdict(t, types.Egress, "10.0.1.1", wtypes.ProtoTCP, 80), "the way out to the node is not free")
}

func TestB25_OneDirectionDoesNotIsolateTheOther(t *testing.T) {
	for dir, spec := range map[types.Direction]string{types.Ingress: "policyTypes: [Ingress]", types.Egress: "policyTypes: [Egress]"} {
		c := in(t, office(), "default", types.ModeDefault, networkPolicy("x", spec))
		for _, peer := range []string{"10.0.0.2", "10.0.0.3", "203.0.113.10", "2001:db8::10", "10.0.1.2"} {
			for _, proto := range []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP, wtypes.ProtoICMP} {
				v, kind := c.ask(t, dir, peer, proto, 80)
				require.Equal(t, types.Deny, v)
				require.Equal(t, types.KindDefaultDeny, kind)
				v, kind = c.ask(t, 1-dir, peer, proto, 80)
				require.Equal(t, types.Allow, v)
				require.Equal(t, types.KindNotIsolated, kind)
			}
		}
	}
}

func TestB26_SCTPRuleOpensItsPortOfSCTPOnly(t *testing.T) {
	c := in(t, office(), "default", types.ModeDefault, networkPolicy("x", "ingress: [{ports: [{protocol: SCTP, port: 3301}]}]"))
	for _, peer := range []string{"10.0.0.2", "fd00::3", "203.0.113.10"} {
		require.Equal(t, types.Deny, c.verdict(t, types.Ingress, peer, wtypes.ProtoTCP, 3301))
		require.Equal(t, types.Allow, c.verdict(t, types.Ingress, peer, wtypes.ProtoSCTP, 3301))
		require.Equal(t, types.Deny, c.verdict(t, types.Ingress, peer, wtypes.ProtoSCTP, 3302))
		require.Equal(t, types.Deny, c.verdict(t, types.Ingress, peer, wtypes.ProtoUDP, 3301))
	}
}

// A pod that sets the labels of namespace, cluster and service account itself is
// still of its own, as subject and as peer.
func TestG01_SmuggledLabelsSelectNothingOfAnother(t *testing.T) {
	w := office()
	w.Pods[0].Labels = labels.PodLabels(labels.Pod{Namespace: "x", Cluster: "default", ServiceAccount: "default", Labels: map[string]string{
		"app": "a", labels.KeyPodNamespace: "y", labels.KeyCluster: "elsewhere", labels.KeyServiceAccount: "root"}})
	w.Pods[1].Labels = labels.PodLabels(labels.Pod{Namespace: "x", Cluster: "default", Labels: map[string]string{
		"app": "b", labels.KeyPodNamespace: "y", labels.KeyServiceAccount: "root", labels.KeyNamespaceLabels + ".team": "blue"}})
	w.Pods[2].Labels = labels.PodLabels(labels.Pod{Namespace: "y", Cluster: "default", ServiceAccount: "root", Labels: map[string]string{"app": "a"},
		NamespaceLabels: map[string]string{"team": "blue"}})

	c := in(t, w, "default", types.ModeDefault, networkPolicy("y", denyAll))
	_, kind := c.ask(t, types.Ingress, "10.0.0.2", wtypes.ProtoTCP, 80)
	require.Equal(t, types.KindNotIsolated, kind, "the other namespace's policy does not select it")
	c = in(t, w, "default", types.ModeDefault, networkPolicy("x", denyAll))
	require.Equal(t, types.Deny, c.verdict(t, types.Ingress, "10.0.0.2", wtypes.ProtoTCP, 80), "its own does")

	for name, document := range map[string]string{
		"labels of the namespace": networkPolicy("x", "ingress: [{from: [{namespaceSelector: {matchLabels: {team: blue}}}]}]"),
		"name of the namespace": "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: c, namespace: x}\n" +
			"spec: {endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {'k8s:" + labels.KeyPodNamespace + "': y}}]}]}\n",
		"service account": "apiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: c}\n" +
			"spec: {endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {'" + labels.KeyServiceAccount + "': root}}]}]}\n",
	} {
		c := in(t, w, "default", types.ModeDefault, document)
		require.Equal(t, types.Deny, c.verdict(t, types.Ingress, "10.0.0.2", wtypes.ProtoTCP, 80), "%s: it only says so", name)
		require.Equal(t, types.Allow, c.verdict(t, types.Ingress, "10.0.0.3", wtypes.ProtoTCP, 80), "%s: it is", name)
	}
}

func TestG04_BlockOnlyPeerDoesNotLetTheNamespaceIn(t *testing.T) {
	for _, clusterName := range []string{"default", "berlin"} {
		w := office()
		for i, ns := range []string{"x", "x", "y"} {
			w.Pods[i].Labels = labels.PodLabels(labels.Pod{Namespace: ns, Cluster: clusterName, Labels: map[string]string{"pod": w.Pods[i].Name}})
		}
		for dir, spec := range map[types.Direction]string{
			types.Ingress: "ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}]}]",
			types.Egress:  "policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 203.0.113.0/24}}]}]",
		} {
			c := in(t, w, clusterName, types.ModeDefault, networkPolicy("x", spec))
			for _, pod := range []string{"10.0.0.2", "10.0.0.3", "fd00::2"} {
				require.Equal(t, types.Deny, c.verdict(t, dir, pod, wtypes.ProtoTCP, 80), "cluster %s: %s", clusterName, pod)
			}
			require.Equal(t, types.Allow, c.verdict(t, dir, "203.0.113.10", wtypes.ProtoTCP, 80))
			require.Equal(t, types.Deny, c.verdict(t, dir, "198.51.100.7", wtypes.ProtoTCP, 80))
		}
	}
}

// A service's address stands for the pod behind it: rules are about the pod and its
// own port, and a rule about the service's address is about nobody.
func TestB08_RulesAreAboutThePodBehindAService(t *testing.T) {
	const vip, pod, other = "10.96.0.10", "10.0.0.2", "10.0.0.3"
	cilium := func(element string) string {
		return "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: c, namespace: x}\nspec: {endpointSelector: {}, egress: [" + element + "]}\n"
	}
	kubernetes := func(element string) string { return networkPolicy("x", "policyTypes: [Egress], egress: ["+element+"]") }
	for _, document := range []string{
		kubernetes("{to: [{podSelector: {matchLabels: {app: b}}}], ports: [{protocol: UDP, port: 53}]}"),
		cilium("{toEndpoints: [{matchLabels: {app: b}}], toPorts: [{ports: [{port: '53', protocol: UDP}]}]}"),
	} {
		c := in(t, office(), "default", types.ModeDefault, document)
		require.Equal(t, types.Allow, c.verdict(t, types.Egress, pod, wtypes.ProtoUDP, 53), "without naming the service")
		require.Equal(t, types.Deny, c.verdict(t, types.Egress, other, wtypes.ProtoUDP, 53))
	}
	for _, document := range []string{kubernetes("{ports: [{port: 8080}]}"), cilium("{toPorts: [{ports: [{port: '8080', protocol: TCP}]}]}")} {
		c := in(t, office(), "default", types.ModeDefault, document) // the service's port is 8080, the pod's 80
		require.Equal(t, types.Deny, c.verdict(t, types.Egress, pod, wtypes.ProtoTCP, 80), "the service's port is not the pod's")
		require.Equal(t, types.Allow, c.verdict(t, types.Egress, pod, wtypes.ProtoTCP, 8080))
	}
	for _, document := range []string{kubernetes("{to: [{ipBlock: {cidr: " + vip + "/32}}]}"), cilium("{toCIDR: [" + vip + "/32]}")} {
		c := in(t, office(), "default", types.ModeDefault, document)
		require.Equal(t, types.Deny, c.verdict(t, types.Egress, pod, wtypes.ProtoTCP, 80), "the service's address opens no pod")
		require.Equal(t, types.Deny, c.verdict(t, types.Egress, pod, wtypes.ProtoUDP, 53))
	}
}
