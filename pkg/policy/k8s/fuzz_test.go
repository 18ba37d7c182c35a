package k8s

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirnet/weir/pkg/policy/types"
)

// fieldErrors takes an error apart; each part has to say where it is.
func fieldErrors(t *testing.T, err error, file string, linesOfText int) []*FieldError {
	t.Helper()
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []*FieldError
		for _, e := range joined.Unwrap() {
			out = append(out, fieldErrors(t, e, file, linesOfText)...)
		}
		return out
	}
	var fe *FieldError
	if !errors.As(err, &fe) {
		t.Fatalf("%v (%T) names no field", err, err)
	}
	if fe.File != file || fe.Problem == "" || fe.Line < 0 || fe.Line > linesOfText {
		t.Fatalf("%+v does not say where it is, in a text of %d lines", fe, linesOfText)
	}
	return []*FieldError{fe}
}

// lineCount counts lines as YAML does, one for the end of the text included.
func lineCount(text []byte) int {
	n := 2
	for _, r := range string(text) {
		if r == '\n' || r == '\r' || r == '\u0085' || r == '\u2028' || r == '\u2029' {
			n++
		}
	}
	return n
}

// FuzzSplit reads any text: every error has a place, and what is made of a
// document is not much bigger than the text, whatever its aliases say.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{
		np("ingress: []") + "---\n" + cnp("egress: []"), "a: &a [*a]", "- a", "%YAML 1.1\n---\nkind: X\n", "kind: 1\napiVersion: 2",
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod, metadata: {labels: {a: &a b, c: *a}}}, {kind: NetworkPolicyList, apiVersion: v1, items: []}]",
		"apiVersion: v1\nkind: Pod\nspec: {containers: [{livenessProbe: {httpGet: {port: [&x {a: {a: {a: [1]}}}, *x]}}}]}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := lineCount(data)
		docs, err := Split(data, "f")
		fieldErrors(t, err, "f", lines)
		if len(docs) > len(data) {
			t.Fatalf("%d documents from %d bytes", len(docs), len(data))
		}
		for _, d := range docs {
			if d.APIVersion == "" || d.Kind == "" || d.Line < 1 || d.Line > lines {
				t.Fatalf("document %+v", d)
			}
			var p corev1.Pod
			if err := d.Decode(&p); err != nil {
				fieldErrors(t, err, "f", lines)
				continue
			}
			out, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if len(out) > 6*maxText+4096 { // a byte can become six in JSON
				t.Fatalf("%d bytes of text became %d", len(data), len(out))
			}
		}
	})
}

// fuzzDialect puts any text into the spec of a kind. Every error has a place, and
// the JSON form of the object means what the text did.
func fuzzDialect(f *testing.F, frame func(string) string, seeds ...string) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		text := []byte(frame(spec))
		docs, err := Split(text, "f")
		fieldErrors(t, err, "f", lineCount(text))
		for _, d := range docs {
			o, err := d.Policy()
			if err == nil {
				_, err = Translate(o, Options{ClusterName: "c"})
			}
			if fieldErrors(t, err, "f", lineCount(text)); err != nil {
				continue
			}
			c := &checker{doc: d, lines: lines{}, left: maxValues, text: maxText}
			tree := c.value(d.node, reflect.TypeOf(o.Value).Elem(), "", 0)
			again, err := json.Marshal(tree)
			if err != nil {
				t.Fatal(err)
			}
			if strings.ContainsFunc(string(again), func(r rune) bool { return !unicode.IsPrint(r) }) {
				continue // YAML has no plain form for it
			}
			objects, err := Decode(again, "f")
			if err != nil || len(objects) != 1 {
				t.Fatalf("%s\nbecame\n%s\nwhich is refused: %v", text, again, err)
			}
			want, got := meaning(t, o), meaning(t, objects[0])
			if !reflect.DeepEqual(want, got) {
				t.Fatalf("%s\nmeans %+v\nas JSON %s\nit means %+v", text, want, again, got)
			}
		}
	})
}

// meaning is the policies of an object, without the places they were read from.
func meaning(t *testing.T, o Object) []*types.Policy {
	ps, err := Translate(o, Options{ClusterName: "c", References: references()})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		p.Resource.Line = 0
		for i := range p.Rules {
			r := &p.Rules[i]
			r.Ref.Line, r.Ref.Resource.Line = 0, 0
			if r.Peers == nil && r.Verdict == types.Pass && r.Tier == types.TierNormal || r.Direction > types.Egress || r.Verdict > types.Pass {
				t.Fatalf("rule %+v", r)
			}
			for _, port := range r.Ports {
				if port.End != 0 && port.End < port.Port {
					t.Fatalf("%s: the range %s is empty", r.Ref, port)
				}
			}
		}
	}
	return ps
}

func FuzzNetworkPolicy(f *testing.F) {
	fuzzDialect(f, np,
		"ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: http}, {port: 1, endPort: 2}]}]",
		"policyTypes: [Ingress, Egress]\negress:\n- to:\n  - podSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}]}\n    namespaceSelector: {}\n  ports: [{protocol: SCTP}]",
		"ingress: [{}]\negress: []", "ingress: [{from: [{namespaceSelector: {matchLabels: {team: red}}}, {podSelector: {}}]}]",
		"ingress: [{from: &f [{ipBlock: {cidr: '::/0'}}]}, {from: *f}]")
}

func FuzzCiliumNetworkPolicy(f *testing.F) {
	fuzzDialect(f, cnp,
		"egress: [{toCIDRSet: [{cidr: '::/0'}], toPorts: [{ports: [{port: '0'}]}]}]\nenableDefaultDeny: {egress: false}",
		"egress: [{icmps: [{fields: [{type: EchoReply}, {family: IPv6, type: 128}]}], toServices: [{k8sService: {serviceName: a}}]}, {toNodes: [{}]}]\nlog: {value: x}",
		"ingress: [{fromCIDRSet: [{cidrGroupRef: partners, except: [10.0.0.0/9]}, {cidrGroupSelector: {}}]}]",
		"ingressDeny: [{fromEndpoints: [{matchLabels: {'k8s:io.kubernetes.pod.namespace': x}}], toPorts: [{ports: [{port: '1', endPort: 5, protocol: ANY}]}]}]",
		"ingress: [{fromEntities: [world, cluster]}, {fromRequires: [{}]}]", "ingress: []\negress: [{toEndpoints: []}]", "egress: [{toFQDNs: [{matchName: a.b}]}]")
}

func FuzzCiliumClusterwideNetworkPolicy(f *testing.F) {
	fuzzDialect(f, ccnp, "ingressDeny: [{fromEndpoints: [{matchExpressions: [{key: 'reserved:init', operator: DoesNotExist}]}]}]",
		"egress: [{toEntities: [all]}, {toNodes: [{matchLabels: {a: b}}]}]", "nodeSelector: {}")
}

func FuzzClusterNetworkPolicy(f *testing.F) {
	frame := func(spec string) string {
		return "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: p}\nspec:\n  " + strings.ReplaceAll(spec, "\n", "\n  ") + "\n"
	}
	fuzzDialect(f, frame,
		"tier: Admin\npriority: 7\nsubject: {namespaces: {}}\ningress: [{name: a, action: Pass, from: [{pods: {podSelector: {}, namespaceSelector: {}}}]}]",
		"tier: Baseline\npriority: 0\nsubject: {pods: {podSelector: {matchLabels: {a: b}}, namespaceSelector: {}}}\negress: [{action: Deny, to: [{networks: ['10.0.0.0/8', '::/0']}, {nodes: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {range: {start: 1, end: 9}}}}]}]",
		"tier: Admin\npriority: 1000\nsubject: {namespaces: {matchLabels: {a: b}}}\nIngress: []")
}
