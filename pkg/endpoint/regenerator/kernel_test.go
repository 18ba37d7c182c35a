package regenerator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/endpoint/regenerator"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// kernel is a node's kernel as the regenerator sees it. It records the calls,
// checks the order contract of the design while they come, can fail any one of
// them, and can die at any one of them, after which nothing has an effect.
type kernel struct {
	mu       sync.Mutex
	calls    []string
	broken   []string // violations of the order contract
	failAt   int      // the number of the call that fails, from 1; 0: none
	dieAt    int      // from this call on nothing has an effect
	onDeath  func()
	dead     bool
	full     bool // no room in the policy maps
	slots    map[uint32]*slot
	nextSlot uint32
	revision uint32
	words    map[uint16][2]uint32
	audits   map[uint16]bool
	lxc      map[netip.Addr]lxcmap.Info
	attached map[uint16]plan.Layout
	loaded   int
	ipcache  map[netip.Addr]identity.NumericIdentity
	prefixes map[netip.Addr]identity.NumericIdentity
	linked   map[uint16]bool
	links    map[int]bool
	known    map[identity.NumericIdentity]bool   // identities in the policy maps
	numbers  map[string]identity.NumericIdentity // of label sets, as the allocator's checkpoint keeps them
}

type slot struct {
	want  map[policymap.Line]bool
	users int
}

func newKernel() *kernel {
	return &kernel{
		slots: map[uint32]*slot{}, words: map[uint16][2]uint32{}, audits: map[uint16]bool{}, lxc: map[netip.Addr]lxcmap.Info{},
		attached: map[uint16]plan.Layout{}, ipcache: map[netip.Addr]identity.NumericIdentity{},
		prefixes: map[netip.Addr]identity.NumericIdentity{}, linked: map[uint16]bool{}, links: map[int]bool{},
		known: map[identity.NumericIdentity]bool{}, numbers: map[string]identity.NumericIdentity{},
	}
}

var errInjected = errors.New("injected failure")

// do runs one call: it is recorded, and has its effect unless it is to fail.
func (k *kernel) do(effect func(), format string, args ...any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return errors.New("the agent is dead")
	}
	k.calls = append(k.calls, fmt.Sprintf(format, args...))
	if len(k.calls) == k.dieAt {
		k.dead = true
		k.onDeath()
		return errors.New("the agent was killed")
	}
	if len(k.calls) == k.failAt && !strings.HasPrefix(format, "ipcache") { // which has no error to give
		return fmt.Errorf("%w: %s", errInjected, k.calls[len(k.calls)-1])
	}
	effect()
	return nil
}

func (k *kernel) must(ok bool, format string, args ...any) {
	if !ok {
		k.broken = append(k.broken, fmt.Sprintf(format, args...))
	}
}

// take returns the calls since the last take.
func (k *kernel) take() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.calls
	k.calls = nil
	return c
}

// recorded is a copy of the calls since the last take.
func (k *kernel) recorded() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.calls)
}

func (k *kernel) slotOf(id uint16) uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.words[id][0]
}

func (k *kernel) revisionOf(id uint16) uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.words[id][1]
}

func (k *kernel) entry(a netip.Addr) (lxcmap.Info, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i, ok := k.lxc[a]
	return i, ok
}

// left describes everything that is in the kernel; empty when it is clean.
func (k *kernel) left() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := ""
	for n, sl := range k.slots {
		s += fmt.Sprintf("slot %d users %d; ", n, sl.users)
	}
	for id, w := range k.words {
		if w[0] != 0 {
			s += fmt.Sprintf("word %d=%d; ", id, w[0])
		}
	}
	return s + describe("lxc", len(k.lxc)) + describe("attached", len(k.attached)) + describe("loaded", k.loaded) +
		describe("ipcache", len(k.ipcache)) + describe("linked", len(k.linked))
}

func describe(what string, n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s %d; ", what, n)
}

// inForce describes what one endpoint's packets meet.
func (k *kernel) inForce(id uint16, a netip.Addr) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	if sl := k.slots[k.words[id][0]]; sl != nil {
		n = len(sl.want)
	}
	return fmt.Sprintf("policy of %d lines, lxc %v, attached %v, ipcache %v, linked %v, loaded %d",
		n, k.lxc[a].Identity, k.attached[id].Identity, k.ipcache[a], k.linked[id], k.loaded)
}

// slots

func (k *kernel) Acquire(group string, _ uint64, want []policymap.Line) (n uint32, err error) {
	err = k.do(func() {
		for i, s := range k.slots {
			if maps.Equal(s.want, asSet(want)) {
				s.users++
				n = i
				return
			}
		}
		k.nextSlot++
		n = k.nextSlot
		k.slots[n] = &slot{asSet(want), 1}
	}, "slot acquire")
	if err == nil && k.isFull() {
		_ = k.Release(n, group)
		return 0, &policymap.FullError{What: "lines of one policy", Have: len(want), Limit: 1}
	}
	return n, err
}

func asSet(want []policymap.Line) map[policymap.Line]bool {
	set := map[policymap.Line]bool{}
	for _, l := range want {
		set[l] = true
	}
	return set
}

func (k *kernel) isFull() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.full
}

func (k *kernel) Update(n uint32, group string, _ uint64, want []policymap.Line) (uint32, error) {
	if k.isFull() {
		return 0, &policymap.FullError{What: "lines of one policy", Have: len(want), Limit: 1}
	}
	return n, k.do(func() {
		k.must(k.slots[n] != nil, "update of slot %d, which does not exist", n)
		k.slots[n].want = asSet(want)
	}, "slot update")
}

func (k *kernel) Release(n uint32, _ string) error {
	return k.do(func() {
		s := k.slots[n]
		if s == nil {
			k.must(false, "slot %d released once too often", n)
			return
		}
		s.users--
		named := 0
		for _, w := range k.words {
			if w[0] == n {
				named++
			}
		}
		k.must(named <= s.users, "slot %d released while a word names it", n)
		if s.users == 0 {
			delete(k.slots, n)
		}
	}, "slot release")
}

func (k *kernel) Adopt(n uint32, _ string) error {
	return k.do(func() { k.slots[n].users++ }, "slot adopt")
}

// words

func (k *kernel) NextRevision() uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.revision++
	return k.revision
}

func (k *kernel) SetPolicy(id uint16, n, revision uint32) error {
	return k.do(func() {
		k.must(n == 0 || k.slots[n] != nil, "word names slot %d before it is filled", n)
		k.must(revision > k.words[id][1], "revision does not move on")
		k.words[id] = [2]uint32{n, revision}
	}, "word set")
}

func (k *kernel) SetAudit(id uint16, on bool) error {
	return k.do(func() { k.audits[id] = on }, "audit set")
}

func (k *kernel) Audit(id uint16) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.audits[id], nil
}

func (k *kernel) Policy(id uint16) (uint32, uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.words[id][0], k.words[id][1], nil
}

func (k *kernel) Clear(id uint16) error {
	return k.do(func() { k.revision++; k.words[id] = [2]uint32{0, k.revision} }, "word clear")
}

func (k *kernel) BumpRevision(...uint16) (uint32, error) { return k.NextRevision(), nil }

// endpoint map

func (k *kernel) Put(a netip.Addr, i lxcmap.Info) error {
	return k.do(func() {
		k.must(k.attached[i.ID].ID == i.ID, "endpoint map entry before its programs")
		k.must(k.known[identity.NumericIdentity(i.Identity)], "endpoint map entry before the policy knows the identity")
		k.lxc[a] = i
	}, "lxc put")
}

func (k *kernel) Delete(a netip.Addr) error {
	return k.do(func() { delete(k.lxc, a) }, "lxc delete")
}

// datapath

type programs struct {
	k    *kernel
	l    plan.Layout
	done bool
}

func (k *kernel) Load(_ context.Context, l plan.Layout) (regenerator.Programs, error) {
	err := k.do(func() { k.loaded++ }, "load")
	return &programs{k: k, l: l}, err
}

func (p *programs) Attach(context.Context) error {
	return p.k.do(func() {
		p.k.must(p.k.words[p.l.ID][1] != 0, "programs attached before the policy")
		p.k.attached[p.l.ID] = p.l
		p.k.loaded--
		p.done = true
	}, "attach")
}

func (p *programs) Close() error {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	if !p.done && !p.k.dead {
		p.k.loaded--
		p.done = true
	}
	return nil
}

func (k *kernel) Unload(_ context.Context, l plan.Layout) error {
	return k.do(func() {
		for _, a := range l.Addrs() {
			_, there := k.lxc[a]
			k.must(!there, "programs detached before the endpoint map entry was gone")
		}
		k.must(!k.linked[l.ID], "programs detached while the link lets packets pass")
		delete(k.attached, l.ID)
	}, "unload")
}

// addresses

func (k *kernel) Publish(a netip.Addr, _ string, id identity.NumericIdentity) {
	_ = k.do(func() {
		k.must(k.known[id], "ipcache entry before the policy knows the identity")
		k.must(k.lxc[a].ID != 0, "ipcache entry before the endpoint map entry")
		k.ipcache[a] = id
	}, "ipcache publish")
}

func (k *kernel) Withdraw(a netip.Addr, _ string) {
	_ = k.do(func() { delete(k.ipcache, a) }, "ipcache withdraw")
}

func (k *kernel) PrefixIdentity(a netip.Addr) identity.NumericIdentity {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.prefixes[a]
}

// link and routes

func (k *kernel) Connect(_ context.Context, l plan.Layout) error {
	return k.do(func() {
		for _, a := range l.Addrs() {
			k.must(k.lxc[a].ID == l.ID, "link up before the endpoint map entry")
		}
		k.linked[l.ID] = true
	}, "connect")
}

func (k *kernel) Disconnect(_ context.Context, l plan.Layout) error {
	return k.do(func() { delete(k.linked, l.ID) }, "disconnect")
}

func (k *kernel) Purge(netip.Addr) error { return k.do(func() {}, "conntrack purge") }

func (k *kernel) link(ifindex int, there bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.links[ifindex] = there
}

func (k *kernel) LinkExists(l endpoint.Link) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.links[l.IfIndex], nil
}

// identities counts references; the kernel's policy maps know what it announces.
type identities struct {
	k    *kernel
	mu   sync.Mutex
	refs map[identity.NumericIdentity]int
}

func (f *identities) Allocate(_ context.Context, ls labels.LabelArray) (*identity.Identity, bool, error) {
	if n, ok := identity.LookupReservedByLabels(ls); ok {
		f.k.mu.Lock()
		defer f.k.mu.Unlock()
		f.k.known[n] = true
		return identity.New(n, ls), false, nil
	}
	f.k.mu.Lock()
	n, ok := f.k.numbers[ls.Key()]
	if !ok {
		n = identity.NumericIdentity(1001 + len(f.k.numbers))
		f.k.numbers[ls.Key()] = n
	}
	f.k.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refs[n]++
	return identity.New(n, ls), f.refs[n] == 1, nil
}

func (f *identities) Release(_ context.Context, n identity.NumericIdentity) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refs[n]--
	if f.refs[n] < 0 {
		return false, fmt.Errorf("identity %d released once too often", n)
	}
	return f.refs[n] == 0, nil
}

func (f *identities) UpdateIdentities(_ context.Context, added, removed identity.IdentityMap) error {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if f.k.dead {
		return errors.New("the agent is dead")
	}
	for n := range added {
		f.k.known[n] = true
	}
	for n := range removed {
		for a, id := range f.k.ipcache {
			f.k.must(id != n, "the policy forgot identity %d while %s has it in the ipcache", n, a)
		}
		delete(f.k.known, n)
	}
	return nil
}

func (f *identities) users() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, r := range f.refs {
		n += r
	}
	return n
}

// policies gives every endpoint the same number of lines.
type policies struct {
	mu       sync.Mutex
	lines    int
	revision uint64
	hook     func(*endpoint.Row)
	fail     error
	keep     string
}

func (p *policies) Resolve(_ context.Context, row *endpoint.Row) (regenerator.Resolved, error) {
	p.mu.Lock()
	hook := p.hook
	out := regenerator.Resolved{Revision: p.revision, Version: p.revision, Entries: map[policytypes.Key]policytypes.Entry{}}
	for i := range p.lines {
		out.Entries[policytypes.Key{Identity: row.Identity, Port: uint16(i)}] = policytypes.Entry{Rule: 1, Verdict: policytypes.Allow}
	}
	err := p.fail
	out.Keep = p.keep
	p.mu.Unlock()
	if hook != nil {
		hook(row)
	}
	return out, err
}

func (p *policies) set(lines int, revision uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines, p.revision = lines, revision
}

func (p *policies) next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revision++
	return p.revision
}

// copyTree copies a state directory as kill -9 would leave it.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o750)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o640)
	})
}
