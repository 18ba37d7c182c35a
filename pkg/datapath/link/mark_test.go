package link

import (
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/types"
)

func TestN02AMarkIsReadAsItWasWrittenAndFits(t *testing.T) {
	full := Mark{Endpoint: 4095, Container: strings.Repeat("f", 64), Interface: "eth0", PodMAC: types.MAC{2, 0, 0, 0, 0, 1}, Network: "weir",
		UID: "6f1c6ed2-6d0f-4c55-9f1f-0d3f2a8d7a11", Namespace: "shop", Pod: "api-5d5bcbfb8c-abcde"}
	long := full
	long.Namespace, long.Pod = strings.Repeat("n", 63), strings.Repeat("p", 253)
	cut := long
	cut.Namespace, cut.Pod = "", ""
	blank := Mark{Container: "a b", Interface: "eth0"}
	for _, c := range [][2]Mark{{full, full}, {{}, {}}, {long, cut}, {blank, {Interface: "eth0"}}} {
		s := c[0].String()
		got, ours := ParseMark(s)
		if !ours || got != c[1] || len(s) > maxAlias {
			t.Errorf("%+v became %q and %+v", c[0], s, got)
		}
	}
	for _, s := range []string{"", "weirdo id=3", "uplink", "x weir id=3"} {
		if m, ours := ParseMark(s); ours {
			t.Errorf("%q is taken for %+v", s, m)
		}
	}
	if m, ours := ParseMark("weir id=99999 id= mac=x of-the-future=1 c=k"); !ours || m != (Mark{Container: "k"}) {
		t.Errorf("words that are not known: %+v", m)
	}
}
