package node

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// In audit mode what a rule denies passes, with an event that names the rule;
// switched off again it is denied at the next packet, flows that are open included.
func TestAuditModeLetsThroughAndTells(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	expect(t, b, "before", web, client, stranger)
	audit := func(mode string) {
		t.Helper()
		code, out := run(t, b, nodeCommand(t, box.Binary(t, "weir"), "--socket", b.Socket(), "endpoint", "audit", "pod-name:"+web.Key(), mode))
		if code != 0 {
			t.Fatalf("weir endpoint audit %s: %s", mode, out)
		}
	}
	audit("on")
	stop := follow(t, b)
	if all, _ := reaches(b, stranger, web, http80); !all {
		t.Error("the stranger does not reach the web pod, whose policy is only audited")
	}
	if all, _ := reaches(b, client, web, http80); !all {
		t.Error("the client does not reach the web pod")
	}
	told := map[string]int{}
	for _, e := range stop() {
		if e.Proto != "TCP" || e.Direction != gen.DirectionIngress || e.Destination.Port != 80 {
			continue
		}
		if e.Type == gen.EventDrop {
			t.Errorf("a drop event in audit mode: %+v", e)
		}
		if e.Type == gen.EventAudit {
			if e.Verdict != gen.VerdictDeny || e.Rule.Kind != gen.RuleDefaultDeny || !strings.Contains(e.Rule.Text, "web") {
				t.Errorf("an audit event does not name the rule: %+v", e)
			}
			told[e.Source.IP]++
		}
	}
	for i, a := range stranger.Addresses {
		if told[a.String()] != 1 || told[client.Addresses[i].String()] != 0 {
			t.Errorf("audit events by source: %v", told)
		}
	}
	why := func() string {
		t.Helper()
		code, out := run(t, b, nodeCommand(t, box.Binary(t, "weir"), "--socket", b.Socket(), "why", stranger.Key(), web.Key()+":80"))
		if code != 1 {
			t.Errorf("weir why: exit code %d: %s", code, out)
		}
		return out
	}
	if out := why(); !strings.Contains(out, "let through all the same: "+web.Key()+" is in audit mode") {
		t.Errorf("weir why does not tell of audit mode: %s", out)
	}
	c, s := component(t, b, "audit")
	if c.State != gen.StateWarning || s.Verdict != gen.StateWarning {
		t.Errorf("the status does not warn of audit mode: %+v", c)
	}

	open := dial(t, stranger.Netns, netip.AddrPortFrom(web.Addresses[0], 80))
	word(t, open)
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	restart(t, b) // it outlives the agent
	word(t, open)
	if all, _ := reaches(b, stranger, web, http80); !all {
		t.Error("after a restart audit mode is forgotten")
	}
	audit("off")
	if out := why(); strings.Contains(out, "audit") {
		t.Errorf("weir why tells of an audit mode that is off: %s", out)
	}
	stop = follow(t, b)
	if _, err := open.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	expect(t, b, "after audit", web, client, stranger)
	from := open.LocalAddr().(*net.TCPAddr).AddrPort()
	f := lab.Flow{Proto: types.ProtoTCP, Src: from, Dst: netip.AddrPortFrom(web.Addresses[0], 80)}
	if len(denials(stop(), f)) == 0 {
		t.Errorf("the open flow %v is not denied", f)
	}
}
