package filesource

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/repository"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
)

const (
	partners = "apiVersion: cilium.io/v2\nkind: CiliumCIDRGroup\nmetadata: {name: partners, labels: {who: partner}}\nspec: {externalCIDRs: [203.0.113.0/24]}\n"
	service  = "apiVersion: v1\nkind: Service\nmetadata: {name: pay, namespace: shop, labels: {tier: out}}\nspec: {ports: [{port: 443}]}\n"
	slice    = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: pay-1, namespace: shop, labels: {kubernetes.io/service-name: pay}}\n" +
		"addressType: IPv4\nports: [{port: 443}]\nendpoints:\n- addresses: [203.0.113.10]\n- {addresses: [203.0.113.11], conditions: {ready: false}}\n"
	slice6 = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: pay-2, namespace: shop, labels: {kubernetes.io/service-name: pay}}\n" +
		"addressType: IPv6\nports: []\nendpoints: [{addresses: ['2001:db8::10']}]\n"
	nodes = "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {zone: a}}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n---\n" +
		"apiVersion: v1\nkind: Node\nmetadata: {name: n2, labels: {zone: b}}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.2}, {type: InternalIP, address: 'fd00:1::2'}]}\n"
)

// egressTo is a policy of namespace shop with one egress element.
func egressTo(name, element string) string {
	return "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: " + name + ", namespace: shop}\nspec:\n  endpointSelector: {}\n  egress:\n  - " + element + "\n"
}

// peersOf prints the peers of the only rule of a policy of namespace shop.
func peersOf(t *testing.T, repo *fakeRepository, name string) []string {
	t.Helper()
	ps := repo.policies["CiliumNetworkPolicy/shop/"+name]
	if len(ps) != 1 || len(ps[0].Rules) != 1 || ps[0].Rules[0].Peers == nil {
		t.Fatalf("%s: %+v", name, ps)
	}
	out := []string{}
	for _, p := range ps[0].Rules[0].Peers {
		switch {
		case p.CIDR == nil:
			out = append(out, p.Labels.String())
		case p.CIDR.Pods:
			out = append(out, p.CIDR.Prefix.String()+" nodes too")
		default:
			out = append(out, p.CIDR.Prefix.String())
		}
	}
	return out
}

func wantPeers(t *testing.T, repo *fakeRepository, name string, want ...string) {
	t.Helper()
	if got := peersOf(t, repo, name); !slices.Equal(got, want) {
		t.Fatalf("%s: peers %q, want %q", name, got, want)
	}
}

func TestWhatPoliciesNameChangesThePoliciesThatNameIt(t *testing.T) {
	s, repo, _, dir := newSource(t)
	put(t, dir, "a.yaml", strings.Join([]string{
		egressTo("byname", "toCIDRSet: [{cidrGroupRef: partners}]"), egressTo("bylabel", "toCIDRSet: [{cidrGroupSelector: {matchLabels: {who: partner}}}]"),
		egressTo("service", "toServices: [{k8sService: {serviceName: pay, namespace: shop}}]"), egressTo("other", "toServices: [{k8sService: {serviceName: db, namespace: shop}}]"),
		egressTo("nodes", "toNodes: [{}]"), egressTo("plain", "toCIDR: [10.0.0.0/8]"),
	}, "---\n"))
	scan(t, s)
	for _, name := range []string{"byname", "bylabel", "service", "other", "nodes"} {
		wantPeers(t, repo, name)
	}
	if len(s.Problems()) != 3 || len(Errors(s.Problems())) != 0 || !strings.Contains(fmt.Sprint(s.Problems()), "a.yaml:7: warning: spec.egress[0].toCIDRSet[0].cidrGroupRef: there is no CiliumCIDRGroup partners") {
		t.Fatalf("problems: %v", s.Problems())
	}

	// step writes or removes a file and says which policies that concerned.
	step := func(file, text string, want ...string) {
		t.Helper()
		repo.replaced = nil
		if text == "" {
			remove(t, dir, file)
		} else {
			put(t, dir, file, text)
		}
		later(t, s)
		for i, name := range want {
			want[i] = "CiliumNetworkPolicy/shop/" + name
		}
		slices.Sort(repo.replaced)
		if slices.Sort(want); !slices.Equal(repo.replaced, want) {
			t.Fatalf("%s: replaced %q, want %q", file, repo.replaced, want)
		}
	}
	step("groups.yaml", partners, "byname", "bylabel")
	wantPeers(t, repo, "byname", "203.0.113.0/24")
	step("groups.yaml", strings.Replace(partners, "who: partner", "who: us", 1), "bylabel")
	wantPeers(t, repo, "bylabel")
	step("groups.yaml", strings.Replace(partners, "203.0.113.0/24", "198.51.100.0/24, '2001:db8::/32'", 1), "byname", "bylabel")
	wantPeers(t, repo, "bylabel", "198.51.100.0/24", "2001:db8::/32")
	step("groups.yaml", strings.Replace(partners, "203.0.113.0/24", "203.0.113.0/33", 1))
	wantPeers(t, repo, "byname", "198.51.100.0/24", "2001:db8::/32")
	if len(Errors(s.Problems())) != 1 || !strings.Contains(s.Problems()[0].String(), `groups.yaml:4: spec.externalCIDRs[0]: "203.0.113.0/33" is no address prefix`) {
		t.Fatalf("a wrong group: %v", s.Problems())
	}
	step("groups.yaml", "", "byname", "bylabel")
	wantPeers(t, repo, "byname")

	step("slices.yaml", slice)
	step("service.yaml", service, "service")
	wantPeers(t, repo, "service", "203.0.113.10/32", "203.0.113.11/32")
	step("slices.yaml", slice+"---\n"+slice6, "service")
	wantPeers(t, repo, "service", "203.0.113.10/32", "203.0.113.11/32", "2001:db8::10/128")
	step("service.yaml", strings.Replace(service, "spec: {", "spec: {selector: {app: pay}, ", 1), "service")
	if got := peersOf(t, repo, "service"); len(got) != 1 || !strings.Contains(got[0], "app") || !strings.Contains(got[0], "shop") {
		t.Fatalf("a service with a selector: %q", got)
	}
	step("service.yaml", strings.Replace(service, "spec: {", "spec: {type: ExternalName, externalName: a.example, selector: {app: pay}, ", 1), "service")
	wantPeers(t, repo, "service", "203.0.113.10/32", "203.0.113.11/32", "2001:db8::10/128")
	step("slices.yaml", "", "service")
	wantPeers(t, repo, "service")

	step("nodes.yaml", nodes, "nodes")
	wantPeers(t, repo, "nodes", labels.NewSelector(labels.Requirement{Source: labels.SourceReserved, Key: labels.NameHost, Operator: labels.Exists}).String(),
		"192.0.2.2/32 nodes too", "fd00:1::2/128 nodes too")
	step("nodes.yaml", strings.Replace(nodes, "192.0.2.2", "192.0.2.3", 1), "nodes")

	step("plain.yaml", egressTo("new", "toCIDRSet: [{cidrGroupRef: partners}]"), "new")
	step("groups.yaml", partners, "byname", "bylabel", "new")
	if len(s.Problems()) != 1 {
		t.Fatalf("problems: %v", s.Problems())
	}
}

func TestPoliciesPutThroughTheAPIFollowWhatTheyName(t *testing.T) {
	s, repo, _, dir := newSource(t)
	put(t, dir, "groups.yaml", partners)
	scan(t, s)
	text := []byte(egressTo("api", "toCIDRSet: [{cidrGroupRef: partners}, {cidrGroupRef: gone}]"))
	policies, problems := s.Check(text, "stdin")
	if len(policies) != 1 || len(policies[0].Rules[0].Peers) != 1 || len(problems) != 1 || !problems[0].Warning {
		t.Fatalf("%+v, %v", policies, problems)
	}
	if _, _, problems, err := s.Put(text, "stdin"); err != nil || len(problems) != 0 {
		t.Fatal(problems, err)
	}
	wantPeers(t, repo, "api", "203.0.113.0/24")
	put(t, dir, "groups.yaml", strings.Replace(partners, "203.0.113.0/24", "198.51.100.0/24", 1))
	scan(t, s)
	wantPeers(t, repo, "api", "198.51.100.0/24")
	if _, _, problems, _ := s.Put([]byte(partners), "stdin"); len(problems) != 1 || !strings.Contains(problems[0].Text, "only policies can be put here") {
		t.Fatalf("a group was put: %v", problems)
	}
}

// A live pod's map state follows the group that its policy names.
func TestAGroupThatChangesTakesEffectInTheRepository(t *testing.T) {
	s, _, _, dir := newSource(t)
	repo, err := repository.New(repository.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Policies = repo
	var named map[netip.Prefix]bool
	repo.ObservePrefixes(func(p map[netip.Prefix]bool) { named = p })
	blocks := identity.IdentityMap{}
	for id, b := range map[identity.NumericIdentity]string{2000: "203.0.113.0/24", 2001: "198.51.100.0/24"} {
		p := netip.MustParsePrefix(b)
		blocks[id] = labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr()))
	}
	web := labels.PodLabels(labels.Pod{Namespace: "shop", Cluster: "default"})
	blocks[1000] = web
	if err := repo.UpdateIdentities(t.Context(), blocks, nil); err != nil {
		t.Fatal(err)
	}
	want := func(what string, first, second policytypes.Verdict) {
		t.Helper()
		scan(t, s)
		answer, err := repo.Resolve(policy.Subject{Identity: 1000, Labels: web})
		if err != nil {
			t.Fatal(err)
		}
		for id, v := range map[identity.NumericIdentity]policytypes.Verdict{2000: first, 2001: second} {
			d := answer.State.Decide(policytypes.Egress, id, id, types.ProtoTCP, 443)
			if d.Verdict != v {
				t.Fatalf("%s: identity %d gets %s, want %s", what, id, d.Verdict, v)
			}
			if _, told := named[blocksPrefix(blocks[id])]; told != (v == policytypes.Allow) {
				t.Fatalf("%s: the prefix of %d is told: %v", what, id, told)
			}
		}
	}
	put(t, dir, "p.yaml", egressTo("p", "toCIDRSet: [{cidrGroupRef: partners}]"))
	want("no group", policytypes.Deny, policytypes.Deny)
	put(t, dir, "groups.yaml", partners)
	want("a group", policytypes.Allow, policytypes.Deny)
	put(t, dir, "groups.yaml", strings.Replace(partners, "203.0.113.0/24", "198.51.100.0/24", 1))
	want("other blocks", policytypes.Deny, policytypes.Allow)
	remove(t, dir, "groups.yaml")
	later(t, s)
	want("the group gone", policytypes.Deny, policytypes.Deny)
}

func blocksPrefix(a labels.LabelArray) netip.Prefix {
	p, _ := a.Prefix()
	return p
}

func TestProblemsOfWhatPoliciesName(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a bad address":             {strings.Replace(slice, "203.0.113.11", "203.0.113.256", 1), `bad.yaml:1: endpoints[1].addresses[0]: "203.0.113.256" is not an IPv4 address`},
		"an address of a family":    {strings.Replace(slice, "203.0.113.11", "'2001:db8::1'", 1), `"2001:db8::1" is not an IPv4 address`},
		"an address type":           {strings.Replace(slice, "IPv4", "ipv4", 1), `addressType: "ipv4" is not known; give IPv4, IPv6 or FQDN`},
		"an unknown field":          {strings.Replace(service, "ports", "portz", 1), "portz"},
		"a service's name":          {strings.Replace(service, "name: pay", "name: Pay_", 1), "metadata.name"},
		"the same group twice":      {partners + "---\n" + strings.Replace(partners, "cilium.io/v2", "cilium.io/v2alpha1", 1), "taken by the object in line 1"},
		"the same service twice":    {service + "---\n" + service, "taken by the object in line 1"},
		"the same slice twice":      {slice + "---\n" + slice, "taken by the object in line 1"},
		"an old kind of endpoints":  {"apiVersion: v1\nkind: Endpoints\nmetadata: {name: a}\n", "kind: Endpoints (v1) is not read from a folder"},
		"a service of another kind": {"apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: a}\n", "is not read from a folder"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, _, dir := newSource(t)
			put(t, dir, "bad.yaml", c.text)
			scan(t, s)
			if len(s.Problems()) != 1 || !strings.Contains(s.Problems()[0].String(), c.want) {
				t.Fatalf("got %v, want %q", s.Problems(), c.want)
			}
		})
	}
}

func TestTheFirstFileKeepsWhatPoliciesNameToo(t *testing.T) {
	s, repo, _, dir := newSource(t)
	put(t, dir, "a.yaml", partners+"---\n"+slice+"---\n"+service)
	put(t, dir, "b.yaml", strings.Replace(partners, "203.0.113", "198.51.100", 1)+"---\n"+strings.Replace(slice, "203.0.113", "198.51.100", 1)+"---\n"+strings.Replace(service, "spec: {", "spec: {selector: {a: b}, ", 1))
	put(t, dir, "p.yaml", egressTo("g", "toCIDRSet: [{cidrGroupRef: partners}]")+"---\n"+egressTo("s", "toServices: [{k8sServiceSelector: {selector: {matchLabels: {tier: out}}}}]"))
	scan(t, s)
	wantPeers(t, repo, "g", "203.0.113.0/24")
	wantPeers(t, repo, "s", "203.0.113.10/32", "203.0.113.11/32")
	if len(s.Problems()) != 3 {
		t.Fatalf("problems: %v", s.Problems())
	}
}
