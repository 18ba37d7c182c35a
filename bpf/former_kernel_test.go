package bpf_test

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

// While programs run that know another table only, every flow is found, whichever
// of them opened it.
func TestFlowsOfAFormerTable(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := pair(t)
	n.fill(1, line{direction: egress, rule: 1}, line{direction: ingress, rule: 2, deny: true})
	n.fill(2, line{direction: egress, rule: 3, deny: true}, line{direction: ingress, rule: 4})
	n.fill(3, defaults(true, 5)...)
	both(t, func(t *testing.T, f family) {
		n.apply(a, 1, 1)
		n.apply(b, 2, 1)
		name := pick(a.addr(f), "weir_former4", "weir_former6")
		former, err := ebpf.NewMap(n.spec.Maps[name].InnerMap)
		if err != nil {
			t.Fatal(err)
		}
		defer former.Close()
		show := func() { n.put(name, uint32(0), former) }
		hide := func() { check(t, n.coll.Maps[name].Delete(uint32(0))) }
		question := between(a, a.addr(f), b.addr(f)).tcp(40000, 80, "S")
		answer := between(b, b.addr(f), a.addr(f)).tcp(80, 40000, "SA")
		passes := func(what string, want bool) {
			t.Helper()
			r := n.from(b, answer.frame(t))
			if passed := r.act == actRedirect && len(r.events) == 0; passed != want || !want && r.dropped() != drop.Policy {
				t.Errorf("the answer %s: verdict %d, %v", what, r.act, r.told())
			}
		}

		show()
		if r := n.from(a, question.frame(t)); r.act != actRedirect {
			t.Fatalf("the question: %v", r.told())
		}
		n.forget() // so that only the former table has the flow
		hide()
		passes("to a flow that no table in sight has", false)
		show()
		passes("to a flow of the former table", true)
		if flows := n.flows(f); len(flows) != 1 || flows[0].Packets != 2 || flows[0].EgressRule != 1 || flows[0].IngressRule != 4 {
			t.Errorf("taken over: %+v", flows)
		}
		hide()
		passes("to a flow that was taken over", true)

		n.forget()
		show()
		failure := pick(a.addr(f), uint8(3), 1)
		if r := n.from(b, quoting(t, between(b, b.addr(f), a.addr(f)), failure, 0, question)); r.act != actRedirect {
			t.Errorf("an error on a flow of the former table: verdict %d, %v", r.act, r.told())
		}
		n.forget()
		n.apply(a, 3, 2)
		passes("to a flow that is denied by now", false)
		if flows := n.flows(f); len(flows) != 1 || flows[0].EgressRevision != 0 || flows[0].IngressRevision != 0 {
			t.Errorf("a denied flow: %+v", flows)
		}

		n.forget()
		n.apply(a, 1, 1)
		key, value := make([]byte, former.KeySize()), make([]byte, former.ValueSize())
		for it := former.Iterate(); it.Next(&key, &value); {
			copy(value[16:20], []byte{0, 0, 0, 0}) // expired at boot
			check(t, former.Put(key, value))
		}
		passes("to a flow that has expired", false)
		hide()
		n.forget()
	})
}
