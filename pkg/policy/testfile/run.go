package testfile

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weirnet/weir/pkg/policy/explain"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Address families of an expectation.
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
)

// Asked is an expectation that was put to a cluster.
type Asked struct {
	Expectation
	Answers []Answer // one per family
	Problem string   // why it could not be asked, or where the answers differ from what is expected; empty: passed
}

// Answer is what the policies make of the connection in one family.
type Answer struct {
	Family      string
	Explanation explain.Explanation
}

// Passed reports whether everything is as expected.
func (a Asked) Passed() bool { return a.Problem == "" }

// Name is "shop/a -> shop/b:80 is allow".
func (a Asked) Name() string {
	name := fmt.Sprintf("%s -> %s:%s is %s", a.From, a.To, a.Port, a.Verdict)
	if a.Family != "" {
		name += " (" + a.Family + ")"
	}
	if a.Rule != "" {
		name += " by " + a.Rule
	}
	return name
}

// Sketch adds what the test brings to a world.
func (f *File) Sketch(s simulate.Sketch) simulate.Sketch {
	namespaces := map[string]map[string]string{}
	for name, ls := range s.Namespaces {
		namespaces[name] = ls
	}
	for name, ls := range f.Namespaces {
		namespaces[name] = ls
	}
	s.Namespaces = namespaces
	s.Pods = append(s.Pods[:len(s.Pods):len(s.Pods)], f.Pods...)
	s.Hosts = append(s.Hosts[:len(s.Hosts):len(s.Hosts)], f.Hosts...)
	return s
}

// Run asks the world with what the test adds for every expectation. The error says that there is no such world.
func (f *File) Run(s simulate.Sketch) ([]Asked, *simulate.Cluster, error) {
	w, err := f.Sketch(s).World()
	if err != nil {
		return nil, nil, err
	}
	c, err := simulate.New(w, nil)
	if err != nil {
		return nil, nil, err
	}
	out := make([]Asked, len(f.Expectations))
	for i, e := range f.Expectations {
		out[i] = e.ask(c)
	}
	return out, c, nil
}

func (e Expectation) ask(c *simulate.Cluster) Asked {
	a := Asked{Expectation: e}
	answers, err := Ask(c, e.From, e.To, e.Port, e.Family)
	if err != nil {
		a.Problem = err.Error()
		return a
	}
	a.Answers = answers
	for _, answer := range answers {
		if p := e.differs(answer.Explanation); p != "" {
			a.Problem = answer.Family + ": " + p
			break
		}
	}
	return a
}

// differs says what is not as expected.
func (e Expectation) differs(x explain.Explanation) string {
	if x.Verdict != e.Verdict {
		return fmt.Sprintf("expected %s, got %s", e.Verdict, x.Verdict)
	}
	if e.Rule == "" {
		return ""
	}
	var decided []string
	for _, j := range []*explain.Judgement{x.Egress, x.Ingress} {
		if j == nil || j.Verdict != x.Verdict {
			continue
		}
		if fits(e.Rule, j.Rule.Ref) {
			return ""
		}
		decided = append(decided, j.Rule.Ref.String())
	}
	return fmt.Sprintf("expected a decision by %q, got %s", e.Rule, strings.Join(decided, " and "))
}

// fits reports whether the words of an expectation name the rule.
func fits(want string, r types.RuleRef) bool {
	switch r.Kind {
	case types.KindPolicy:
		policy := r.Resource.String()
		return want == policy || want == fmt.Sprintf("%s %s[%d]", policy, r.Section, r.Index)
	case types.KindDefaultDeny:
		for _, p := range r.Isolated {
			if want == p.String() {
				return true
			}
		}
		return want == "default deny"
	case types.KindNotIsolated:
		return want == "not isolated"
	}
	return want == r.String()
}

// Ask explains a connection in every family that both ends have, or in the one
// that is given.
func Ask(c *simulate.Cluster, from, to, port, family string) ([]Answer, error) {
	p, err := ParsePort(port)
	if err != nil {
		return nil, err
	}
	src, err := ends(c, from)
	if err != nil {
		return nil, err
	}
	dst, err := ends(c, to)
	if err != nil {
		return nil, err
	}
	if src[0].Name == dst[0].Name {
		return nil, fmt.Errorf("%s to itself passes no policy", src[0].Name)
	}
	if !src[0].Pod && !dst[0].Pod {
		return nil, fmt.Errorf("neither %s nor %s is a pod, so no policy is asked", from, to)
	}
	var out []Answer
	for _, f := range []string{IPv4, IPv6} {
		a, b := first(src, f), first(dst, f)
		if a == nil || b == nil || family != "" && f != family {
			continue
		}
		proto, number := p.Proto, p.Number
		switch {
		case proto == wtypes.ProtoICMP && f == IPv6:
			proto, number = wtypes.ProtoICMPv6, 128 // echo request, RFC 4443 section 4.1
		case proto == wtypes.ProtoICMP:
			number = 8 // echo request, RFC 792
		case p.Name != "":
			var ok bool
			if number, ok = b.NamedPorts[types.NamedPort{Name: p.Name, Proto: proto}]; !ok || number == 0 {
				return nil, fmt.Errorf("%s gives no %s port the name %q; give the number, or another name", b.Name, proto, p.Name)
			}
		}
		out = append(out, Answer{f, c.Explain(*a, *b, proto, number)})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s and %s have no address of one family", from, to)
	}
	return out, nil
}

func first(ends []simulate.End, family string) *simulate.End {
	for i := range ends {
		if ends[i].Addr.Is4() == (family == IPv4) {
			return &ends[i]
		}
	}
	return nil
}

// ends finds a pod, a host or an address.
func ends(c *simulate.Cluster, name string) ([]simulate.End, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return []simulate.End{c.End(a)}, nil
	}
	if found, ok := c.Ends(name); ok {
		if len(found) == 0 {
			return nil, fmt.Errorf("%s has no address", name)
		}
		return found, nil
	}
	var short []string
	for _, n := range c.Names() {
		if _, pod, ok := strings.Cut(n, "/"); ok && pod == name {
			short = append(short, n)
		}
	}
	switch len(short) {
	case 0:
		return nil, fmt.Errorf("there is no pod, host or address %q; there are %s", name, some(c.Names()))
	case 1:
		return ends(c, short[0])
	}
	return nil, fmt.Errorf("%q may be %s; write NAMESPACE/NAME", name, strings.Join(short, " or "))
}

// Named is the name of a pod or host in full, from a name as people write it.
func Named(c *simulate.Cluster, name string) (string, error) {
	found, err := ends(c, name)
	if err != nil {
		return "", err
	}
	if _, ok := c.Ends(found[0].Name); !ok {
		return "", fmt.Errorf("%s is the address of no pod or host; there are %s", name, some(c.Names()))
	}
	return found[0].Name, nil
}

// some lists up to ten names.
func some(names []string) string {
	if len(names) > 10 {
		return strings.Join(names[:10], ", ") + fmt.Sprintf(" and %d more", len(names)-10)
	}
	return strings.Join(names, ", ")
}
