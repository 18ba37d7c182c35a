package k8s

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirnet/weir/pkg/policy/api"
)

func TestOneFileHoldsManyObjects(t *testing.T) {
	text := "---\n# nothing here\n---\n" + np("") + "---\n" + cnp("ingress: [{}]") + "---\nnull\n---\n" + ccnp("egress: [{}]")
	objects, err := Decode([]byte(text), "p.yaml")
	require.NoError(t, err)
	require.Len(t, objects, 3)
	require.Equal(t, []int{4, 11, 20}, []int{objects[0].Line, objects[1].Line, objects[2].Line})
	require.IsType(t, &networkingv1.NetworkPolicy{}, objects[0].Value)
	require.IsType(t, &api.CiliumNetworkPolicy{}, objects[1].Value)
	require.IsType(t, &api.CiliumClusterwideNetworkPolicy{}, objects[2].Value)
}

func TestAListIsTakenApart(t *testing.T) {
	item := strings.ReplaceAll(strings.TrimSpace(np("ingress: [{}]")), "\n", "\n  ")
	objects, err := Decode([]byte("apiVersion: v1\nkind: List\nitems:\n- "+item+"\n- "+strings.Replace(item, "name: p", "name: q", 1)), "l.yaml")
	require.NoError(t, err)
	require.Len(t, objects, 2)
	require.Equal(t, "NetworkPolicy/shop/q", objects[1].ID())
	require.Equal(t, 10, objects[1].Line)
	ps, err := Translate(objects[1], Options{})
	require.NoError(t, err)
	require.Equal(t, 15, ps[0].Rules[0].Ref.Line)
}

func TestJSONIsReadToo(t *testing.T) {
	objects, err := Decode([]byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p","creationTimestamp":null},"spec":{"podSelector":{}}}`), "")
	require.NoError(t, err)
	require.Equal(t, "NetworkPolicy/default/p", objects[0].ID())
}

func TestTheGoodObjectsOfABadFileAreReturned(t *testing.T) {
	text := np("ingres: []\negres: []") + "---\n" + cnp("ingress: [{}]") + "---\nkind: X\n---\n- a\n---\napiVersion: v1\nkind: ConfigMap\n---\n" +
		cnp("egress: [{}]") + "---\na: [\n"
	objects, err := Decode([]byte(text), "p.yaml")
	require.Len(t, objects, 1)
	var fe *FieldError
	require.True(t, errors.As(err, &fe))
	for _, want := range []string{
		"p.yaml:6: NetworkPolicy shop/p: spec.ingres: ", "p.yaml:7: NetworkPolicy shop/p: spec.egres: ",
		"p.yaml:16: X: has no apiVersion and kind", "p.yaml:18: is a list, not an object", `p.yaml:20: ConfigMap: kind: "ConfigMap" is no kind of policy`,
		"p.yaml:23: CiliumNetworkPolicy shop/p: metadata.name: is taken by the object in line 9", "p.yaml:31: not readable as YAML: did not find expected node content; look at",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestKindsOfLaterIssuesAreRefusedByName(t *testing.T) {
	_, err := Decode([]byte("apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: a}\nspec: {}\n"), "p.yaml")
	require.EqualError(t, err, "p.yaml:1: AdminNetworkPolicy a: kind: AdminNetworkPolicy (policy.networking.k8s.io/v1alpha1) is not supported yet; use ClusterNetworkPolicy with tier Admin")
}

func TestHostileTextsAreRefused(t *testing.T) {
	bomb := "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nx: &a0 [1,1,1,1,1,1,1,1,1,1]\n"
	for i := 1; i < 9; i++ {
		n := string(rune('0' + i))
		p := string(rune('0' + i - 1))
		bomb += "y" + n + ": &a" + n + " [*a" + p + strings.Repeat(", *a"+p, 9) + "]\n"
	}
	bomb += "spec: {podSelector: {matchLabels: *a8}}\n"
	deep := np("ingress: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000))
	many := "annotations: {a: &a " + strings.Repeat("x", 100_000)
	for i := range 100 {
		many += fmt.Sprintf(", b%d: *a", i)
	}
	long := strings.Replace(np(""), "namespace: shop", many+"}", 1)
	loop := strings.Replace(np(""), "metadata:", "metadata: &m {annotations: {a: *m}}\nx:", 1)
	for name, text := range map[string]string{"aliases": bomb, "nesting": deep, "an alias of itself": loop, "aliases of a long text": long, "size": strings.Repeat("a", MaxBytes+1),
		"merge key": "x: &x {a: b}\n" + strings.Replace(np(""), "podSelector:", "<<: *x\n  podSelector:", 1)} {
		objects, err := Decode([]byte(text), "p.yaml")
		require.Error(t, err, name)
		require.Empty(t, objects, name)
		require.Less(t, len(err.Error()), 16<<10, name)
	}
}

func TestAnchorsOfTheSameDocumentWork(t *testing.T) {
	p := policies(t, np("ingress:\n- ports: &p [{port: 80}]\n- ports: *p"))[0]
	require.Equal(t, p.Rules[0].Ports, p.Rules[1].Ports)
}

func TestOtherKindsAreDecodedByTheSameRules(t *testing.T) {
	docs, err := Split([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: b, labels: {x: y}, creationTimestamp: '2026-01-02T03:04:05Z'}\n"+
		"spec:\n  containers:\n  - name: c\n    image: i\n    resources: {limits: {cpu: 0.5, memory: 1Gi}}\n    ports: [{containerPort: 80, name: http}]\n"+
		"    readinessProbe: {httpGet: {port: http}}\n    livenessProbe: {httpGet: {port: 80}}\nstatus: {phase: Running, podIP: 10.0.0.1}\n"), "pods.yaml")
	require.NoError(t, err)
	require.Len(t, docs, 1)
	require.False(t, docs[0].IsPolicy())
	var p corev1.Pod
	require.NoError(t, docs[0].Decode(&p))
	require.Equal(t, "10.0.0.1", p.Status.PodIP)
	require.Equal(t, "http", p.Spec.Containers[0].ReadinessProbe.HTTPGet.Port.StrVal)
	require.Equal(t, "500m", p.Spec.Containers[0].Resources.Limits.Cpu().String())
	require.Equal(t, 2026, p.CreationTimestamp.Year())

	docs, err = Split([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a, lables: {}}\nspec: {hostNetwork: 'true', containers: [{ports: [{containerPort: 80.5}]}]}\n"), "pods.yaml")
	require.NoError(t, err)
	err = docs[0].Decode(&p)
	require.ErrorContains(t, err, "pods.yaml:3: Pod a: metadata.lables: is not a field that exists here; did you mean labels?")
	require.ErrorContains(t, err, `spec.hostNetwork: is the text "true"; give true or false`)
	require.ErrorContains(t, err, "spec.containers[0].ports[0].containerPort: is the number 80.5; give a whole number of 32 bits")
	require.Error(t, docs[0].Decode(p), "not a pointer")
	require.Error(t, docs[0].Decode(nil))
}

func TestObjectsThatNeverWereText(t *testing.T) {
	o, err := NewObject(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{}}}})
	require.NoError(t, err)
	ps, err := Translate(o, Options{})
	require.NoError(t, err)
	require.Equal(t, "NetworkPolicy default/p ingress[0]", ps[0].Rules[0].Ref.String())
	_, err = NewObject(&corev1.Pod{})
	require.Error(t, err)
	_, err = Translate(Object{}, Options{})
	require.Error(t, err)
}

// The policies of the example are read by everybody who tries Weir.
func TestTheExamplesAreRight(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*/*.yaml")
	require.NoError(t, err)
	found := 0
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		docs, err := Split(data, f)
		require.NoError(t, err)
		for _, d := range docs {
			if !d.IsPolicy() {
				continue
			}
			o, err := d.Policy()
			require.NoError(t, err)
			_, err = Translate(o, Options{ClusterName: "default"})
			require.NoError(t, err)
			found++
		}
	}
	require.NotZero(t, found)
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		np("ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: http}, {port: 1, endPort: 2}]}]"),
		cnp("egress: [{toCIDRSet: [{cidr: '::/0'}], toPorts: [{ports: [{port: '0'}]}]}]\nenableDefaultDeny: {egress: false}"),
		cnp("egress: [{icmps: [{fields: [{type: EchoReply}, {family: IPv6, type: 128}]}], toServices: [{k8sService: {serviceName: a}}]}, {toNodes: [{}]}]\nlog: {value: x}"),
		cnp("ingress: [{fromCIDRSet: [{cidrGroupRef: partners, except: [10.0.0.0/9]}, {cidrGroupSelector: {}}]}]"),
		"apiVersion: cilium.io/v2alpha1\nkind: CiliumCIDRGroup\nmetadata: {name: g}\nspec: {externalCIDRs: [10.0.0.0/8, '::/0']}",
		ccnp("ingressDeny: [{fromEndpoints: [{matchExpressions: [{key: 'reserved:init', operator: DoesNotExist}]}]}]"),
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: a, kind: b}]", "a: &a [*a]", "? [a]\n: b", "a: !!binary x", "\xff", "apiVersion: v1\nkind: Pod\nspec: {x: .nan}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, _ := Split(data, "f")
		for _, d := range docs {
			var p corev1.Pod
			_ = d.Decode(&p)
			if g, err := d.CIDRGroup(); (g == nil) == (err == nil) {
				t.Fatalf("group %v, error %v", g, err)
			}
		}
		objects, err := Decode(data, "f")
		if err == nil && len(objects) != len(docs) {
			t.Fatalf("%d objects of %d documents without an error", len(objects), len(docs))
		}
		for _, o := range objects {
			ps, err := Translate(o, Options{ClusterName: "c"})
			if (err == nil) != (len(ps) > 0) {
				t.Fatalf("%d policies, error %v", len(ps), err)
			}
			known, err2 := Translate(o, Options{ClusterName: "c", References: references()})
			if fmt.Sprint(err) != fmt.Sprint(err2) {
				t.Fatalf("the references decide whether the object is right: %v, %v", err, err2)
			}
			for _, p := range append(ps, known...) {
				for _, r := range p.Rules {
					for _, peer := range r.Peers {
						if peer.Labels != nil && peer.Labels.IsEmpty() {
							t.Fatalf("%s: a selector became a wildcard", r.Ref)
						}
					}
				}
			}
		}
	})
}
