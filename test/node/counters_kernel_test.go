package node

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// Lines of a policy count what they judge at once, and show what the flows of
// their rule carry.
func TestPolicyLinesCount(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	type line struct {
		Direction, Verdict, RuleText string
		Identity                     uint32
		Judged, Packets, Bytes       uint64
	}
	dump := func() (lines []line) {
		t.Helper()
		code, out := run(t, b, nodeCommand(t, box.Binary(t, "weir"), "--socket", b.Socket(), "-o", "json", "bpf", "policy", "pod-name:"+web.Key()))
		if err := json.Unmarshal([]byte(out), &lines); code != 0 || err != nil {
			t.Fatalf("weir bpf policy: %d, %v: %s", code, err, out)
		}
		return lines
	}
	_, from := identityOf(t, b, client.Key())
	sums := func() (allowed line, denied uint64) {
		for _, l := range dump() {
			switch {
			case l.Direction == "ingress" && l.Verdict == "allow" && l.Identity == from:
				allowed = l
			case l.Direction == "ingress" && l.Verdict == "deny" && l.Identity == 0:
				denied += l.Judged
			}
		}
		return allowed, denied
	}
	before, deniedBefore := sums()
	conn := dial(t, client.Netns, netip.AddrPortFrom(web.Addresses[0], 80))
	for range 20 {
		word(t, conn)
	}
	if _, any := reaches(b, stranger, web, http80); any {
		t.Error("the stranger reaches the web pod")
	}
	after, deniedAfter := sums()
	if after.Judged != before.Judged+1 {
		t.Errorf("one connection was judged %d times", after.Judged-before.Judged)
	}
	if after.Packets < before.Packets+43 || after.Bytes < before.Bytes+43*52 { // three of the handshake, twenty words and their echoes
		t.Errorf("a connection with 20 words and their echoes counts %d packets and %d bytes", after.Packets-before.Packets, after.Bytes-before.Bytes)
	}
	if deniedAfter == deniedBefore {
		t.Error("what is denied is not counted")
	}
}
