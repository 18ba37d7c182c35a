package sysctl

import (
	"errors"
	"io/fs"
	"os/exec"
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
	settings := VethSettings("lxctest", true, true)
	if err := Set(settings); err != nil {
		t.Fatal(err)
	}
	c := &Changes{root: procSys}
	for _, s := range settings {
		if now, err := c.read(s.Name); err != nil || now != s.Value {
			t.Errorf("%s is %s, %v", s.Name, now, err)
		}
	}
	if err := Set(VethSettings("lxcgone", true, true)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such link: %v", err)
	}
}

func TestARealForwardChainThatDropsIsFound(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("nft"))
	if got, where, err := ForwardPolicy(t.Context()); got != ForwardAccept || err != nil {
		t.Errorf("no rules at all: %s, %s, %v", got, where, err)
	}
	const rules = "table inet fw { chain passing { type filter hook forward priority 0; policy drop; }; }"
	if out, err := exec.CommandContext(t.Context(), "nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, where, err := ForwardPolicy(t.Context()); got != ForwardDrop || where != "nft chain inet fw passing" || err != nil {
		t.Errorf("%s, %q, %v", got, where, err)
	}
}
