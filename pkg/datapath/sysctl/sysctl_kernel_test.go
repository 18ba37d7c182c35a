package sysctl

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/weirnet/weir/pkg/testutils"
)

func TestTheNodeIsSetUpAndPutBack(t *testing.T) {
	testutils.Kernel(t)
	c, damage := Open(filepath.Join(t.TempDir(), "sysctl.json"))
	if damage != nil {
		t.Fatal(damage)
	}
	var err error
	settings := NodeSettings(true, true)
	before := map[string]string{}
	for _, s := range settings {
		if before[s.Name], err = c.read(s.Name); err != nil {
			t.Fatal(err)
		}
		if err := c.write(s.Name, map[string]string{"1": "0", "0": "1"}[s.Value]); err != nil { // so that there is something to change
			t.Fatal(err)
		}
	}
	if err := c.Apply(settings); err != nil {
		t.Fatal(err)
	}
	if got := c.List(); len(got) != len(settings) {
		t.Errorf("changed %v", got)
	}
	for _, s := range settings {
		if now, err := c.read(s.Name); err != nil || now != s.Value {
			t.Errorf("%s is %s, %v", s.Name, now, err)
		}
	}
	if left, err := c.Undo(); err != nil || len(left) != 0 {
		t.Errorf("left alone %v, %v", left, err)
	}
	for _, s := range settings {
		if now, err := c.read(s.Name); err != nil || now == s.Value {
			t.Errorf("after undo %s is %s, %v", s.Name, now, err)
		}
	}
}

func TestAVethGetsItsSettings(t *testing.T) {
	testutils.Kernel(t)
	testutils.VethPair(t, "lxctest", testutils.NewNetns(t), "eth0")
	settings := VethSettings("lxctest", "0", true, true)
	if err := Set(settings); err != nil {
		t.Fatal(err)
	}
	c := &Changes{root: procSys}
	for _, s := range settings {
		if now, err := c.read(s.Name); err != nil || now != s.Value {
			t.Errorf("%s is %s, %v", s.Name, now, err)
		}
	}
	if err := Set(VethSettings("lxcgone", "0", true, true)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such link: %v", err)
	}
}

// The filter of all interfaces and that of the uplink stay as they are, whatever
// they are, and a former build's change goes at the first start.
func TestN04TheReversePathFilterOfOthersIsNeverWritten(t *testing.T) {
	testutils.Kernel(t)
	testutils.VethPair(t, "lxcrp", testutils.NewNetns(t), "eth0")
	const other = "net/ipv4/conf/lo/rp_filter"
	for all, own := range map[string]string{"0": "0", "1": "2", "2": "0"} {
		file := filepath.Join(t.TempDir(), "sysctls.json")
		if err := writeRecord(file, record{recordVersion, []Change{{Name: allRPFilter, Old: all, New: "0"}, {Name: "net/ipv4/ip_forward", Old: "0", New: "1"}}}); err != nil {
			t.Fatal(err)
		}
		if err := Set([]Setting{{Name: allRPFilter, Value: "0"}, {Name: other, Value: "1"}, {Name: "net/ipv4/ip_forward", Value: "1"}}); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the first start and another one
			c, err := Open(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Apply(NodeSettings(true, true)); err != nil {
				t.Fatal(err)
			}
			if err := SetVeth("lxcrp", true, true); err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{allRPFilter: all, other: "1", "net/ipv4/conf/lxcrp/rp_filter": own} {
				if got, err := c.read(name); err != nil || got != want {
					t.Errorf("all was %s: %s is %s, %v; want %s", all, name, got, err, want)
				}
			}
			for _, m := range c.List() {
				if m.Name == allRPFilter {
					t.Errorf("all was %s: still remembered: %+v", all, m)
				}
			}
		}
	}
	// Somebody else has set it since: it is theirs.
	file := filepath.Join(t.TempDir(), "sysctls.json")
	if err := writeRecord(file, record{recordVersion, []Change{{Name: allRPFilter, Old: "1", New: "0"}}}); err != nil {
		t.Fatal(err)
	}
	c, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Set([]Setting{{Name: allRPFilter, Value: "2"}}), c.Apply(NodeSettings(true, true))); err != nil {
		t.Fatal(err)
	}
	if got, err := c.read(allRPFilter); err != nil || got != "2" || len(c.List()) > 0 && c.List()[0].Name == allRPFilter {
		t.Errorf("somebody's own value became %s, %v, with %+v", got, err, c.List())
	}
}
