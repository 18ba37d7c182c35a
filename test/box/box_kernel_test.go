package box

import (
	"fmt"
	"testing"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
)

// A policy in place of another is in force when InForce returns, though their
// number is the same.
func TestInForceWaitsForAsManyOtherPolicies(t *testing.T) {
	env := testutils.Kernel(t)
	b := Start(t, Options{BPFRoot: env.BPFRoot, Files: map[string]string{"pods.yaml": PodYAML("x", "web", "", "") + PodYAML("x", "client", "", "")}})
	port := lab.Port{Proto: types.ProtoTCP, Port: 80}
	web, client := b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{port}}), b.Add(lab.Pod{Namespace: "x", Name: "client"})
	for round := range 6 {
		open := round%2 == 1
		ingress := "[]"
		if open {
			ingress = "[{}]"
		}
		b.Write("policy.yaml", fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: x}\n"+
			"spec: {podSelector: {matchLabels: {pod: web}}, policyTypes: [Ingress], ingress: %s}\n", ingress))
		b.InForce(1)
		if err := b.Try(client.Netns, client.Addresses[0], web.Addresses[0], port); (err == nil) != open {
			t.Fatalf("round %d: the policy is in force, ingress %s: %v", round, ingress, err)
		}
	}
	list, err := b.Agent.Policies(t.Context())
	if err != nil || len(list.Policies) != 1 {
		t.Errorf("Settle leaves policies behind: %+v, %v", list.Policies, err)
	}
}
