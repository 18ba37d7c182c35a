package differential

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/cli/trial"
	"github.com/weirnet/weir/pkg/drop"
	pkgendpoint "github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/maps/policymap"
	"github.com/weirnet/weir/pkg/monitor"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/testutils"
	wtypes "github.com/weirnet/weir/pkg/types"
)

const (
	envSeed, envVerdicts = "WEIR_DIFF_SEED", "WEIR_DIFF_VERDICTS"
	defaultVerdicts      = 100_000
	opensBefore          = 110 // connections of a world before its policies change
	opensAfter           = 90  // and after
	answers              = 50  // packets of open flows after the change, at most
	minShare             = 20  // percent of each class
	enough               = 3   // disagreements that end the run
	disagreement         = "DISAGREEMENT"
)

func TestKernelMapStateAndOracleAgree(t *testing.T) {
	env := testutils.Kernel(t, testutils.Tool("clang-19"))
	seed, target := number(t, envSeed, uint64(time.Now().UnixNano())), number(t, envVerdicts, defaultVerdicts)
	t.Logf("%s=%d %s=%d", envSeed, seed, envVerdicts, target)
	r := &run{t: t, seed: seed, node: openNode(t, env.BPFRoot, seed), rules: numbersOfRules{ids: map[string]types.RuleID{}}}
	start := time.Now()
	for number := uint64(1); r.count.total() < target && r.found < enough; number++ {
		if err := r.world(number); err != nil {
			t.Fatalf("world %d: %v", number, err)
		}
		r.count.worlds++
	}
	t.Logf("%s in %s", r.count.String(), time.Since(start).Round(10*time.Millisecond))
	if r.found > 0 {
		t.Fatalf("see them again with %s=%d", envSeed, seed)
	}
	r.count.check(t)
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// count is what was compared.
type count struct {
	worlds, packets                  uint64
	allow, explicitDeny, defaultDeny uint64
	again                            uint64 // of them, judged again on a packet of an open flow
	family                           [2]uint64
	kinds                            map[string]uint64 // allow or deny, and the kind of the rule
	changed                          uint64            // judged again, with another rule than before
}

func (c *count) total() uint64 { return c.allow + c.explicitDeny + c.defaultDeny }

func (c *count) add(w want, v4 bool) {
	switch {
	case w.verdict == types.Allow:
		c.allow++
	case w.ref.Kind == types.KindPolicy:
		c.explicitDeny++
	default:
		c.defaultDeny++
	}
	if v4 {
		c.family[0]++
	} else {
		c.family[1]++
	}
	if c.kinds == nil {
		c.kinds = map[string]uint64{}
	}
	c.kinds[fmt.Sprintf("%s by kind %d", w.verdict, w.ref.Kind)]++
}

func (c *count) share(n uint64) float64 { return 100 * float64(n) / float64(max(c.total(), 1)) }

func (c *count) String() string {
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(c.kinds)) {
		kinds = append(kinds, fmt.Sprintf("%s: %d", k, c.kinds[k]))
	}
	return fmt.Sprintf("%d verdicts (allow %.1f %%, explicit deny %.1f %%, default deny %.1f %%; IPv4 %.1f %%, IPv6 %.1f %%; %d of open flows, %d of them by another rule than before) on %d packets in %d worlds; %s",
		c.total(), c.share(c.allow), c.share(c.explicitDeny), c.share(c.defaultDeny), c.share(c.family[0]), c.share(c.family[1]),
		c.again, c.changed, c.packets, c.worlds, strings.Join(kinds, ", "))
}

// check demands that the run was worth something.
func (c *count) check(t *testing.T) {
	t.Helper()
	for name, n := range map[string]uint64{
		"allow": c.allow, "explicit deny": c.explicitDeny, "default deny": c.defaultDeny, "IPv4": c.family[0], "IPv6": c.family[1],
	} {
		if c.share(n) < minShare {
			t.Errorf("%s has %.1f %% of the verdicts, want %d %% at least", name, c.share(n), minShare)
		}
	}
	if c.changed == 0 {
		t.Error("no open flow was judged by another rule after a change of policy")
	}
}

// run compares world after world.
type run struct {
	t       *testing.T
	seed    uint64
	node    *node
	numbers simulate.Numbers
	rules   numbersOfRules
	count   count
	found   int
	sport   uint16
	judged  map[line]uint64 // packets since the last take
	before  map[line]uint64 // what the lines had counted then
}

// line is a line of a policy map in the kernel.
type line struct {
	slot uint32
	policymap.Key
}

// flow is a connection that was allowed.
type flow struct {
	conn
	rules     [2]types.RuleID // by direction
	revisions [2]uint32
}

// want is what one end has to say of a connection.
type want struct {
	dir     types.Direction
	pod     *pod // whose policy is asked
	verdict types.Verdict
	ref     types.RuleRef
	rule    types.RuleID
	line    line // that decides
}

// reason is that of the event.
func (w want) reason() drop.Reason {
	switch {
	case w.verdict == types.Allow:
		return drop.Forwarded
	case w.ref.Kind == types.KindPolicy:
		return drop.PolicyDeny
	}
	return drop.Policy
}

// world runs one world: new connections, a change of policies for some of the
// pods, packets of open connections, new connections again.
func (r *run) world(number uint64) error {
	w := newWorld(r.seed, number, &r.numbers, r.node.pods)
	open, used := map[flowKey]*flow{}, map[flowKey]bool{}
	if err := r.take(w, func(*pod) bool { return true }); err != nil {
		return err
	}
	if err := r.open(w, opensBefore, open, used); err != nil {
		return err
	}
	changed := map[string]bool{}
	for _, p := range w.pods {
		if _, known := changed[p.group()]; !known {
			changed[p.group()] = w.chance(60)
		}
		if p.at != nil && changed[p.group()] {
			p.inForce = 1
		}
	}
	if err := r.take(w, func(p *pod) bool { return p.inForce == 1 }); err != nil {
		return err
	}
	if err := r.answer(w, open); err != nil {
		return err
	}
	if err := r.open(w, opensAfter, open, used); err != nil {
		return err
	}
	if err := r.compareCounters(w); err != nil {
		return err
	}
	return r.node.retire(w)
}

func (r *run) take(w *world, changed func(*pod) bool) error {
	if err := r.compareCounters(w); err != nil {
		return err
	}
	if err := w.resolve(&r.rules); err != nil {
		return err
	}
	if err := r.node.apply(w, changed); err != nil {
		return err
	}
	var err error
	r.judged = map[line]uint64{}
	r.before, err = r.counters(w)
	return err
}

// counters reads how many packets each line of the pods' policies has judged.
func (r *run) counters(w *world) (map[line]uint64, error) {
	out := map[line]uint64{}
	for _, p := range w.pods {
		if p.at == nil || p.kernel.Slot == 0 {
			continue
		}
		lines, err := r.node.Dump(&p.kernel)
		if err != nil {
			return nil, err
		}
		for k, e := range lines {
			out[line{p.kernel.Slot, k}] = e.Judged
		}
	}
	return out, nil
}

// compareCounters compares what the lines counted since the last take with what
// they were to judge. Lines that pass are left out: what they passed on counts
// where it was decided.
func (r *run) compareCounters(w *world) error {
	if len(r.judged) == 0 {
		return nil
	}
	now, err := r.counters(w)
	if err != nil {
		return err
	}
	for k, n := range r.judged {
		if got := now[k] - r.before[k]; got != n {
			r.disagree(w, conn{src: &end{}, dst: &end{}}, "line %+v counted %d packets, want %d", k, got, n)
		}
	}
	r.judged = nil
	return nil
}

// wants asks the oracle about both ends, and compares the map states with it.
func (r *run) wants(w *world, c conn) []want {
	var out []want
	port := c.dport
	for _, at := range []struct {
		dir       types.Direction
		own, peer *end
	}{{types.Egress, c.src, c.dst}, {types.Ingress, c.dst, c.src}} {
		if !at.own.local() {
			continue
		}
		p := at.own.pod
		v := w.versions[p.inForce]
		both := oracle.Judge(&w.facts, v.policies, v.mode, oracle.Connection{Src: c.src.addr, Dst: c.dst.addr, Proto: c.proto, Port: port})
		j := both.Egress
		if at.dir == types.Ingress {
			j = both.Ingress
		}
		x := want{dir: at.dir, pod: p, verdict: j.Verdict, ref: j.Ref, rule: r.rules.of(j.Ref)}
		if d := p.state.Decide(at.dir, at.peer.id, at.peer.where, c.proto, port); d.Verdict != x.verdict || d.Rule != x.rule {
			r.disagree(w, c, "%s: the map state says %s by %s (line %s), the oracle %s by %s",
				at.dir, d.Verdict, r.rules.text(d.Rule), d.Key, x.verdict, r.rules.text(x.rule))
		} else {
			x.line = line{p.kernel.Slot, pkgendpoint.KernelKey(d.Key)}
		}
		out = append(out, x)
	}
	return out
}

// open sends first packets of new connections.
func (r *run) open(w *world, n int, open map[flowKey]*flow, used map[flowKey]bool) error {
	for range n {
		r.sport = r.sport%60000 + 1
		c := w.conn(1024 + r.sport)
		if used[c.key().undirected()] {
			continue
		}
		used[c.key().undirected()] = true
		flags := byte(trial.TCPSYN)
		if w.chance(20) {
			flags = trial.TCPACK // picked up in the middle
		}
		wants := r.wants(w, c)
		f := &flow{conn: c}
		var told []told
		denied := -1 // index of the verdict that the drop tells
		for i, x := range wants {
			f.rules[x.dir], f.revisions[x.dir] = x.rule, x.pod.kernel.Revision
			if x.verdict == types.Deny && denied < 0 {
				denied = i
			}
			r.count.add(x, c.v4())
			r.judged[x.line]++
		}
		for i, x := range wants {
			told = append(told, tell(c, x, i == denied))
		}
		atDestination := !c.src.local() || c.dst.local() && w.chance(25) // as if it came through the node's stack
		if err := r.send(w, c, false, flags, atDestination, denied < 0, told); err != nil {
			return err
		}
		if denied < 0 {
			open[c.key()] = f
		}
	}
	return r.compareFlows(w, open)
}

// answer sends packets of open connections, which are judged again by what
// changed since, and by nothing else.
func (r *run) answer(w *world, open map[flowKey]*flow) error {
	keys := slices.SortedFunc(maps.Keys(open), func(a, b flowKey) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	w.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, k := range keys[:min(answers, len(keys))] {
		for range 2 { // what is denied is so again, from whichever end
			allowed, err := r.answerOne(w, open[k])
			if err != nil {
				return err
			}
			if allowed {
				break
			}
		}
	}
	return r.compareFlows(w, open)
}

// answerOne sends a packet of an open connection. One that is denied leaves the
// flow without revisions.
func (r *run) answerOne(w *world, f *flow) (allowed bool, err error) {
	reply, forward := f.answerable()
	if !forward {
		return true, nil
	}
	reply = reply && w.chance(70)
	var told []told
	allowed = true
	before := f.rules
	for _, x := range r.wants(w, f.conn) {
		if f.revisions[x.dir] == x.pod.kernel.Revision {
			continue // not asked
		}
		r.count.add(x, f.v4())
		r.judged[x.line]++
		r.count.again++
		if x.rule != f.rules[x.dir] {
			r.count.changed++
			told = append(told, tell(f.conn, x, x.verdict == types.Deny))
		}
		if x.verdict == types.Deny {
			allowed = false
			break // the other direction is not asked any more
		}
		f.rules[x.dir], f.revisions[x.dir] = x.rule, x.pod.kernel.Revision
	}
	if !allowed {
		f.rules, f.revisions = before, [2]uint32{}
	}
	from, to := f.src, f.dst
	if reply {
		from, to = to, from
	}
	atDestination := !from.local() || to.local() && w.chance(25)
	return allowed, r.send(w, f.conn, reply, trial.TCPACK, atDestination, allowed, told)
}

// told is what is compared of an event.
type told struct {
	Type        monitor.Type
	Direction   types.Direction
	Endpoint    uint16
	Reason      drop.Reason
	Rule        types.RuleID
	Revision    uint32
	Proto       wtypes.Proto
	Src, Dst    netip.AddrPort
	ICMPType    uint8
	SrcID       identity.NumericIdentity
	SrcPrefixID identity.NumericIdentity
	DstID       identity.NumericIdentity
	DstPrefixID identity.NumericIdentity
}

// tell is the event of a verdict; dropped: it ends the packet.
func tell(c conn, w want, dropped bool) told {
	e := told{
		Type: monitor.Verdict, Direction: w.dir, Endpoint: w.pod.at.Layout.ID, Reason: w.reason(), Rule: w.rule, Revision: w.pod.kernel.Revision,
		Proto: c.proto, Src: netip.AddrPortFrom(c.src.addr, c.sport), Dst: netip.AddrPortFrom(c.dst.addr, c.dport),
		SrcID: c.src.id, SrcPrefixID: c.src.where, DstID: c.dst.id, DstPrefixID: c.dst.where,
	}
	if c.icmp() {
		e.ICMPType, e.Dst = uint8(c.dport), netip.AddrPortFrom(c.dst.addr, 0)
	}
	if dropped {
		e.Type = monitor.Drop
	}
	return e
}

// heard is the same of a real event.
func heard(e monitor.Event) told {
	return told{
		Type: e.Type, Direction: e.Direction, Endpoint: e.Endpoint, Reason: e.Reason, Rule: e.Rule, Revision: e.Revision, Proto: e.Protocol,
		Src: netip.AddrPortFrom(e.Source.Addr, e.Source.Port), Dst: netip.AddrPortFrom(e.Destination.Addr, e.Destination.Port), ICMPType: e.ICMPType,
		SrcID: e.Source.Identity, SrcPrefixID: e.Source.PrefixIdentity, DstID: e.Destination.Identity, DstPrefixID: e.Destination.PrefixIdentity,
	}
}

// send runs one packet and compares what becomes of it and what is told.
func (r *run) send(w *world, c conn, reply bool, flags byte, atDestination, allowed bool, want []told) error {
	from, to := c.src, c.dst
	if reply {
		from, to = to, from
	}
	prog, act := fromProgram, uint32(trial.ActOK)
	at := from
	if atDestination {
		prog, at = toProgram, to
	} else if to.local() {
		act = trial.ActRedirect
	}
	if !allowed {
		act = trial.ActShot
	}
	r.count.packets++
	got, events, err := r.node.run(prog(at.pod.at), c.frame(reply, flags, at.pod.at.Layout.MAC), from.addr)
	if err != nil {
		return err
	}
	have := make([]told, len(events))
	for i, e := range events {
		have[i] = heard(e)
	}
	if c.icmp() && reply {
		for i := range want { // the event tells the packet's type
			_, answer := c.echo()
			want[i].ICMPType = uint8(answer)
		}
	}
	byDirection := func(a, b told) int { return int(a.Direction) - int(b.Direction) }
	slices.SortFunc(have, byDirection)
	slices.SortFunc(want, byDirection)
	if got != act || !slices.Equal(have, want) {
		r.disagree(w, c, "reply %v, at the destination %v: the kernel returns %d and tells\n  %s\nthe oracle wants %d and\n  %s",
			reply, atDestination, got, r.list(have), act, r.list(want))
	}
	return nil
}

func (r *run) list(events []told) string {
	lines := make([]string, len(events))
	for i, e := range events {
		lines[i] = fmt.Sprintf("%s %s by %s: %+v", e.Direction, e.Reason, r.rules.text(e.Rule), e)
	}
	return strings.Join(lines, "\n  ")
}

func fromProgram(e *endpoint) *ebpf.Program { return e.From }
func toProgram(e *endpoint) *ebpf.Program   { return e.To }

// compareFlows compares conntrack with the flows that should be open.
func (r *run) compareFlows(w *world, open map[flowKey]*flow) error {
	have, err := r.node.flows()
	if err != nil {
		return err
	}
	for k, f := range open {
		got, ok := have[k]
		if !ok {
			r.disagree(w, f.conn, "conntrack does not hold the flow %v", k)
			continue
		}
		rules := [2]types.RuleID{types.Egress: types.RuleID(got.EgressRule), types.Ingress: types.RuleID(got.IngressRule)}
		revisions := [2]uint32{types.Egress: got.EgressRevision, types.Ingress: got.IngressRevision}
		if rules != f.rules || revisions != f.revisions {
			r.disagree(w, f.conn, "conntrack holds rules %v under revisions %v (ingress, egress), want %v under %v", rules, revisions, f.rules, f.revisions)
		}
		delete(have, k)
	}
	for k, f := range have {
		r.disagree(w, conn{src: &end{addr: k.initiator.Addr()}, dst: &end{addr: k.responder.Addr()}, proto: k.proto, sport: k.initiator.Port(), dport: k.responder.Port()},
			"conntrack holds a flow that nobody allowed: %+v", f)
	}
	return nil
}

// disagree reports a difference with all that explains it.
func (r *run) disagree(w *world, c conn, format string, args ...any) {
	r.t.Helper()
	r.found++
	if r.found > enough {
		return
	}
	var b strings.Builder
	for _, at := range []struct {
		dir       types.Direction
		own, peer *end
	}{{types.Egress, c.src, c.dst}, {types.Ingress, c.dst, c.src}} {
		if !at.own.local() {
			continue
		}
		p := at.own.pod
		fmt.Fprintf(&b, "\n%s of %s, mode %s, labels %s; the peer is %d/%d. What matches, strongest first:", at.dir, p.Name, w.versions[p.inForce].mode, p.Labels, at.peer.id, at.peer.where)
		for _, m := range p.selector.Matching(w.index, at.dir, at.peer.id, at.peer.where, c.proto, c.dport) {
			fmt.Fprintf(&b, "\n  %08x/%d %s %s, line %s", m.Entry.Precedence, m.Entry.Rank, m.Entry.Verdict, r.rules.text(m.Entry.Rule), m.Key)
		}
	}
	r.t.Errorf("%s in world %d of seed %d: %s: %s%s", disagreement, w.number, r.seed, c, fmt.Sprintf(format, args...), b.String())
}
