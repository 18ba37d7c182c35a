package eventsmap

import (
	"testing"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestN54WhatIsLeftOutIsCountedByEndpoint(t *testing.T) {
	env := testutils.Kernel(t)
	root, err := bpf.OpenRoot(env.BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenOrCreateShares(root)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer s.m.Unpin()
	if got, err := s.LeftOut(); err != nil || len(got) != 0 {
		t.Errorf("at first %v, %v", got, err)
	}
	for key, each := range map[uint32]uint64{2 * 7: 3, 2*7 + 1: 4, 2*4095 + 1: 5} {
		cpus := make([]share, s.cpus)
		for i := range cpus {
			cpus[i].LeftOut = each
		}
		if err := s.m.Put(key, cpus); err != nil {
			t.Fatal(err)
		}
	}
	n := uint64(s.cpus)
	if got, err := s.LeftOut(); err != nil || len(got) != 2 || got[7] != 7*n || got[4095] != 5*n {
		t.Errorf("left out %v, %v", got, err)
	}
	if err := s.Reset(7); err != nil {
		t.Fatal(err)
	}
	again, err := OpenOrCreateShares(root) // as after a restart
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got, err := again.LeftOut(); err != nil || len(got) != 1 || got[4095] != 5*n {
		t.Errorf("after a restart %v, %v", got, err)
	}
}
