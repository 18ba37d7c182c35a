package k8s

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

const tierHead = "apiVersion: policy.networking.k8s.io/%s\nkind: ClusterNetworkPolicy\nmetadata: {name: c}\nspec:\n"

func tierPolicy(t *testing.T, version, spec string) (*types.Policy, error) {
	t.Helper()
	objects, err := Decode([]byte(fmt.Sprintf(tierHead, version)+spec), "c.yaml")
	if err != nil {
		return nil, err
	}
	ps, err := Translate(objects[0], Options{ClusterName: "default"})
	if err != nil {
		return nil, err
	}
	require.Len(t, ps, 1)
	return ps[0], nil
}

func TestBothVersionsOfClusterNetworkPolicyMeanTheSame(t *testing.T) {
	const spec = `  tier: Admin
  priority: 7
  subject: {namespaces: {matchLabels: {team: a}}}
  ingress:
  - {name: tools, action: Pass, from: [{namespaces: {}}]}
  egress:
  - action: Deny
    to: [{networks: [10.0.0.0/8, "fd00::/8"]}]
    protocols: [{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {range: {start: 1000, end: 2000}}}}, {sctp: {}}]
  - action: Accept
    to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: dns}}}}]
    protocols: [{destinationNamedPort: dns}]
`
	for _, version := range []string{"v1alpha2", "v1beta1"} {
		p, err := tierPolicy(t, version, spec)
		require.NoError(t, err)
		require.False(t, p.IsolatesIngress || p.IsolatesEgress)
		require.Len(t, p.Rules, 3)
		for _, r := range p.Rules {
			require.Equal(t, types.TierAdmin, r.Tier)
			require.EqualValues(t, 7, r.Priority)
		}
		require.Equal(t, types.Pass, p.Rules[0].Verdict)
		require.Equal(t, `ClusterNetworkPolicy c ingress[0] "tools" (c.yaml:9)`, p.Rules[0].Ref.String())
		require.Nil(t, p.Rules[0].Ports)
		require.Equal(t, types.Deny, p.Rules[1].Verdict)
		require.Len(t, p.Rules[1].Peers, 2)
		require.True(t, p.Rules[1].Peers[1].CIDR.Pods, "networks match pods too")
		require.Equal(t, []types.Port{
			{Proto: wtypes.ProtoTCP, Port: 80}, {Proto: wtypes.ProtoUDP, Port: 1000, End: 2000}, {Proto: wtypes.ProtoSCTP},
		}, p.Rules[1].Ports)
		require.Len(t, p.Rules[2].Ports, 3, "a name of any protocol")
	}
}

func TestNodesOfAClusterNetworkPolicyAreTheirAddresses(t *testing.T) {
	p, err := tierPolicy(t, "v1beta1", "  tier: Baseline\n  priority: 0\n  subject: {namespaces: {}}\n  egress: [{action: Deny, to: [{nodes: {}}]}]\n")
	require.NoError(t, err)
	require.NotNil(t, p.Rules[0].Peers, "no node is known: nobody, not anybody")
	require.Empty(t, p.Rules[0].Peers)
	require.Equal(t, types.TierBaseline, p.Rules[0].Tier)
}

func TestWrongClusterNetworkPoliciesAreRefused(t *testing.T) {
	const good = "  tier: Admin\n  priority: 1\n  subject: {namespaces: {}}\n  ingress: [{action: Deny, from: [{namespaces: {}}]}]\n"
	_, err := tierPolicy(t, "v1beta1", good)
	require.NoError(t, err)
	egress := func(rule string) string {
		return strings.Replace(good, "ingress: [{action: Deny, from: [{namespaces: {}}]}]", "egress: ["+rule+"]", 1)
	}
	for want, spec := range map[string]string{
		`spec.tier: "admin" is not known; give Admin or Baseline`:                 strings.Replace(good, "Admin", "admin", 1),
		"spec.priority: is missing; give a number from 0 to 1000":                 strings.Replace(good, "  priority: 1\n", "", 1),
		"spec.priority: is 1001; give a number from 0 to 1000":                    strings.Replace(good, "priority: 1", "priority: 1001", 1),
		"spec.subject: selects nothing; give namespaces":                          strings.Replace(good, "{namespaces: {}}\n", "{}\n", 1),
		"spec.subject: has namespaces and pods":                                   strings.Replace(good, "{namespaces: {}}\n", "{namespaces: {}, pods: {podSelector: {}}}\n", 1),
		`spec.ingress[0].action: "Allow" is not known; give Accept, Deny or Pass`: strings.Replace(good, "Deny", "Allow", 1),
		"spec.ingress[0].from: is missing or empty":                               strings.Replace(good, "[{namespaces: {}}]}", "[]}", 1),
		"spec.ingress[0].from[0]: sets 0 fields; give one of namespaces or pods":  strings.Replace(good, "[{namespaces: {}}]}", "[{}]}", 1),
		"spec.ingress[0].frm":                                                               strings.Replace(good, "from", "frm", 1),
		"spec.ingress: has 26 members, the most is 25":                                      "  tier: Admin\n  priority: 1\n  subject: {namespaces: {}}\n  ingress: [" + strings.Repeat("{action: Deny, from: [{namespaces: {}}]}, ", 26) + "]\n",
		"spec.egress[0].to[0].domainNames: is not supported yet":                            egress("{action: Accept, to: [{domainNames: [example.org]}]}"),
		`spec.egress[0].to[0].networks[0]: "10.0.0.1/8" has bits behind its length`:         egress("{action: Deny, to: [{networks: [10.0.0.1/8]}]}"),
		`spec.egress[0].to[0].networks[0]: "10.0.0.1" has no length`:                        egress("{action: Deny, to: [{networks: [10.0.0.1]}]}"),
		"spec.egress[0].to[0].networks: is empty":                                           egress("{action: Deny, to: [{networks: []}]}"),
		"spec.egress[0].to[0]: stands beside a destinationNamedPort":                        egress("{action: Deny, to: [{networks: [10.0.0.0/8]}], protocols: [{destinationNamedPort: http}]}"),
		"spec.egress[0].protocols: is empty":                                                egress("{action: Deny, to: [{namespaces: {}}], protocols: []}"),
		"spec.egress[0].protocols[0]: sets 2 fields":                                        egress("{action: Deny, to: [{namespaces: {}}], protocols: [{tcp: {}, udp: {}}]}"),
		"spec.egress[0].protocols[0].tcp.destinationPort: has number and range":             egress("{action: Deny, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 1, range: {start: 1, end: 2}}}}]}"),
		"spec.egress[0].protocols[0].tcp.destinationPort.number: is 0":                      egress("{action: Deny, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {}}}]}"),
		"spec.egress[0].protocols[0].tcp.destinationPort.range: is 2 to 2; give numbers":    egress("{action: Deny, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 2, end: 2}}}}]}"),
		`spec.egress[0].protocols[0].destinationNamedPort: "-" is neither a number nor a p`: egress("{action: Deny, to: [{namespaces: {}}], protocols: [{destinationNamedPort: \"-\"}]}"),
		"spec.egress[0].name: has 101 characters; give 100 at most":                         egress("{name: " + strings.Repeat("n", 101) + ", action: Deny, to: [{namespaces: {}}]}"),
	} {
		_, err := tierPolicy(t, "v1beta1", spec)
		require.ErrorContains(t, err, want)
	}
	_, err = tierPolicy(t, "v1", good)
	require.ErrorContains(t, err, `apiVersion: "policy.networking.k8s.io/v1" is not known for this kind; give policy.networking.k8s.io/v1alpha2 or policy.networking.k8s.io/v1beta1`)
}
