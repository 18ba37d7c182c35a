package differential

// mutation is a fault of one line.
type mutation struct {
	name string // a subtest's name
	file string // below the repository
	old  string // found once in the file; the lines around the fault where one alone is not enough
	new  string // the same lines with the fault
	what string // what breaks
}

var mutations = []mutation{
	{
		"precedence", "bpf/lib/policy.h",
		"key->identity = prefix_identity;\n\t\tother = bpf_map_lookup_elem(map, key);\n\t\tif (other && (!best || other->order > best->order))",
		"key->identity = prefix_identity;\n\t\tother = bpf_map_lookup_elem(map, key);\n\t\tif (other && (!best || other->order < best->order))",
		"the weaker of two planes decides",
	},
	{
		"wildcard", "bpf/lib/policy.h",
		"\tif (identity) {", "\tif (!identity) {",
		"what holds for anybody is not looked up",
	},
	{
		"prefix-identity", "bpf/lib/policy.h",
		"if (prefix_identity && prefix_identity != identity) {", "if (prefix_identity && prefix_identity == identity) {",
		"a block does not match the pods inside it",
	},
	{
		"direction", "bpf/lib/policy.h",
		"key.direction = direction | stage << 1;", "key.direction = !direction | stage << 1;",
		"ingress is judged by egress rules and the other way round",
	},
	{
		"reply-port", "bpf/lib/policy.h",
		"return p->reply ? p->sport : p->dport;", "return p->dport;",
		"a reply that is judged again is judged by the port of the client",
	},
	{
		"initiator", "bpf/lib/conntrack.h",
		".flags = side ? CT_INITIATOR_1 : 0,", ".flags = side ? 0 : CT_INITIATOR_1,",
		"conntrack takes the responder for the initiator",
	},
	{
		"revision", "bpf/lib/conntrack.h",
		"j->egress_stale = e.egress_revision != egress;", "j->egress_stale = e.egress_revision > egress;",
		"an open flow is not judged again by a newer egress policy",
	},
	{
		"denied", "bpf/lib/conntrack.h",
		"\t\t\tstore_flow(key, family, &e); /*",
		"\t\t\tfamily == FAMILY_V4 ? bpf_map_delete_elem(&weir_ct4, &key->v4) : bpf_map_delete_elem(&weir_ct6, &key->v6); /*",
		"a flow that is denied is forgotten, and its responder opens it anew",
	},
	{
		"last-bit", "bpf/lib/identity.h",
		"key.prefixlen = family == FAMILY_V4 ? 64 : 160;", "key.prefixlen = family == FAMILY_V4 ? 63 : 160;",
		"an entry for a single IPv4 address is not found",
	},
	{
		"last-port", "pkg/policy/port.go",
		"for at, end := uint32(first), uint32(last)+1; at < end; {", "for at, end := uint32(first), uint32(last); at < end; {",
		"the last port of a range is left out",
	},
	{
		"fold", "pkg/policy/mapstate.go",
		"if b.makes(k.Identity) && b.outdoneAbove(k, e) {", "if false && b.outdoneAbove(k, e) {",
		"a narrow line hides a stronger wide one",
	},
	{
		"deny-class", "pkg/policy/resolve.go",
		"class = types.ClassDeny", "class = types.ClassAllow",
		"a deny does not win over an allow",
	},
	{
		"deny-reason", "bpf/lib/policy.h",
		"== POLICY_CLASS_DEFAULT ? DROP_POLICY : DROP_POLICY_DENY", "!= POLICY_CLASS_DEFAULT ? DROP_POLICY : DROP_POLICY_DENY",
		"an explicit deny is told as a default deny",
	},
	{
		"except", "pkg/policy/index.go",
		"\t\tif prefixContains(e, p) {", "\t\tif false && prefixContains(e, p) {",
		"the excepts of a block are ignored",
	},
	{
		"agreed-name", "pkg/policy/namedport.go",
		"n.agreed = len(n.all) == 1 && givers[name] == len(addrs)", "n.agreed = len(n.all) == 1",
		"a named port also opens pods that do not give the name",
	},
	{
		"rank", "pkg/endpoint/bpf.go",
		"uint64(^e.Rank)", "uint64(e.Rank)",
		"of equally strong rules the last one gives its number",
	},
	{
		"exact-port", "pkg/maps/policymap/record.go",
		"r.key.PrefixLen = anyPortBits + uint32(k.PortBits)", "r.key.PrefixLen = min(anyPortBits+uint32(k.PortBits), exactPortBits-1)",
		"a rule for a port also holds for its neighbour",
	},
	{
		"where", "pkg/maps/lxcmap/lxcmap.go",
		"Identity: i.Identity, PrefixIdentity: i.PrefixIdentity,", "Identity: i.Identity, PrefixIdentity: i.Identity,",
		"a pod's prefix identity does not reach the kernel",
	},
	{
		"stage", "bpf/lib/policy.h",
		"stage = entry->pass;", "stage = 0;",
		"a pass leads nowhere",
	},
	{
		"stage-wildcard", "bpf/lib/policy.h",
		"if (identity) {\n\t\tkey->identity = 0;\n\t\tother = bpf_map_lookup_elem(map, key);\n\t\tif (other && (!best || other->order > best->order))", "if (identity) {\n\t\tkey->identity = 0;\n\t\tother = bpf_map_lookup_elem(map, key);\n\t\tif (other && !best)",
		"what holds for anybody is taken only where nothing else is",
	},
	{
		"pass-encoding", "pkg/maps/policymap/record.go",
		"Rule: e.Rule, Pass: e.Pass}", "Rule: e.Rule}",
		"a pass is a deny",
	},
	{
		"stage-encoding", "pkg/maps/policymap/record.go",
		"k.Direction | k.Stage<<1", "k.Direction | k.Stage<<2",
		"the lines below a pass are not found",
	},
	{
		"pass-below-normal", "pkg/policy/types/entry.go",
		"return t >= TierAdmin+Tier(s) && s != StageBelowBaseline", "return t > TierAdmin+Tier(s) && s != StageBelowBaseline",
		"a pass of the Admin tier also skips NetworkPolicy",
	},
	{
		"pass-too-far", "pkg/policy/resolve.go",
		"if r.Tier > types.TierNormal {\n\t\t\te.Next", "if r.Tier != types.TierNormal {\n\t\t\te.Next",
		"a pass of the Admin tier also skips Baseline",
	},
	{
		"baseline-when-isolated", "pkg/policy/resolve.go",
		"if len(d.Isolating) > 0 { // then", "if len(d.Isolating) > 99 { // then",
		"the Baseline tier is asked for a pod that NetworkPolicy isolates",
	},
	{
		"ordered-by-verdict", "pkg/policy/resolve.go",
		"case r.Tier.Ordered():", "case r.Tier.Ordered() && r.Verdict != types.Deny:",
		"in an ordered tier a later deny wins over an earlier accept",
	},
	{
		"tier-order", "pkg/policy/types/entry.go",
		"level := uint32(tier-TierAdmin)<<16", "level := uint32(TierBaseline-tier)<<16",
		"the tiers are asked the other way round",
	},
	{
		"range-block", "pkg/policy/port.go",
		"uint8(16 - bits.TrailingZeros32(size))", "uint8(min(16, 17-bits.TrailingZeros32(size)))",
		"each block of a port range covers its lower half only",
	},
	{
		"prefix-inside", "pkg/policy/index.go",
		"outer.Bits() <= inner.Bits()", "outer.Bits() < inner.Bits()",
		"a block does not match the prefix identity of the same prefix",
	},
	{
		"counter", "bpf/lib/policy.h",
		"__sync_fetch_and_add(&entry->judged, 1);", "__sync_fetch_and_add(&entry->judged, 2);",
		"a packet counts twice",
	},
}
