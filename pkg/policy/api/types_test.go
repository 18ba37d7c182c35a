package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// B15: missing and empty lists stay what they are on the way to disk and back.
func TestB15_EmptyListsSurviveJSON(t *testing.T) {
	for _, text := range []string{
		`{"endpointSelector":{},"ingress":[]}`,
		`{"endpointSelector":{},"ingress":[{}],"egress":[{"toPorts":[]}]}`,
		`{"endpointSelector":{},"ingress":[{"fromEndpoints":[]},{"fromCIDR":[]},{"fromCIDRSet":[]},{"fromEntities":[]}]}`,
		`{"endpointSelector":{},"egressDeny":[{"toEndpoints":[{}]},{"toCIDRSet":[{"cidr":"::/0","except":[]}]},{"toEntities":[],"toPorts":[{"ports":[]}]}]}`,
		`{"endpointSelector":{},"ingressDeny":[{}],"enableDefaultDeny":{"ingress":false},"labels":[],"description":"d"}`,
	} {
		var r Rule
		require.NoError(t, json.Unmarshal([]byte(text), &r))
		out, err := json.Marshal(r.DeepCopy())
		require.NoError(t, err)
		require.JSONEq(t, text, string(out))
		var again Rule
		require.NoError(t, json.Unmarshal(out, &again))
		require.Equal(t, r, again, "nil and empty differ")
	}
}

func TestCopiesShareNothing(t *testing.T) {
	p := &CiliumNetworkPolicy{Spec: &Rule{
		EndpointSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		Egress:           []EgressRule{{EgressPeers: EgressPeers{ToCIDR: []string{"10.0.0.0/8"}}, ToPorts: []PortRule{{Ports: []PortProtocol{{Port: "80"}}}}}},
	}}
	c := p.DeepCopyObject().(*CiliumNetworkPolicy)
	require.Equal(t, p, c)
	c.Spec.EndpointSelector.MatchLabels["a"] = "c"
	c.Spec.Egress[0].ToCIDR[0] = "11.0.0.0/8"
	c.Spec.Egress[0].ToPorts[0].Ports[0].Port = "81"
	require.Equal(t, "b", p.Spec.EndpointSelector.MatchLabels["a"])
	require.Equal(t, "10.0.0.0/8", p.Spec.Egress[0].ToCIDR[0])
	require.Equal(t, "80", p.Spec.Egress[0].ToPorts[0].Ports[0].Port)
}
