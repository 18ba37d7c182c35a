package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/spell"
)

// selects checks what a policy selects among what is known.
func (l *linter) selects(p part) {
	if contradiction(p.policy.Subject) != "" {
		return
	}
	if ns := p.object.Namespace; ns != "" && len(l.world.Namespaces) > 0 && !l.namespaceExists(ns) {
		for _, r := range p.rules {
			l.dead[r.Ref.Key()] = true
		}
		l.report(p, NoNamespace, "metadata.namespace", "create the namespace or correct the name"+l.meant(ns, l.namespaceNames()),
			"the policy lies in the namespace %q, which is not there", ns)
		return
	}
	for _, m := range p.missing {
		l.report(p, NoReference, m.Path, "correct the name, or create what it names", "%s: %s", m.Path, m.Problem)
	}
	if !p.misses(p.subjectPath()) {
		l.subject(p)
	}
	for _, r := range p.rules {
		for i, peer := range r.Peers {
			if peer.Labels != nil && p.misses(p.peerPath(r, i)) {
				l.dead[r.Ref.Key()] = true
			} else if peer.Labels != nil && !namesReserved(*peer.Labels) && contradiction(*peer.Labels) == "" {
				l.peer(p, r, i, *peer.Labels)
			}
		}
	}
}

// namespaces finds those that have pods and no object, where others have one: then
// it is not that nobody wrote objects down.
func (l *linter) namespaces() {
	if !slices.ContainsFunc(l.world.Namespaces, func(n Namespace) bool { return !n.Implied }) {
		return
	}
	for _, n := range l.world.Namespaces {
		if n.Implied {
			l.found = append(l.found, Finding{Code: NoNamespaceObject, File: n.File, Line: n.Line,
				Reason: fmt.Sprintf("pods live in the namespace %s, and it has no Namespace object, so that no selector of namespaces by labels matches it", n.Name),
				Fix:    "put the Namespace object with its labels beside the others"})
		}
	}
}

func (l *linter) subject(p part) {
	s := p.policy.Subject
	if len(l.world.Pods)+len(l.world.HostPods) == 0 || namesReserved(s) || len(podPart(s)) == 0 || l.known.pods.any(s) {
		return
	}
	field := p.subjectPath()
	for _, r := range p.rules {
		l.dead[r.Ref.Key()] = true
	}
	if l.known.hostPods.any(s) {
		l.report(p, HostNetworkOnly, field, "take the pods out of the host network, or take the policy out",
			"the pods selected use the network of their node, so that the policy does not govern them")
		return
	}
	l.report(p, NoSubject, field, "correct the labels"+l.hint(s), "%s, so the policy governs nothing", l.lacking(s))
}

// peer reports a label selector that nothing known matches.
func (l *linter) peer(p part, r *types.Rule, i int, s labels.Selector) {
	if len(l.world.Namespaces) > 0 && !l.known.namespace(s) {
		l.dead[r.Ref.Key()] = true
		l.report(p, NoNamespace, p.peerPath(r, i), "correct the selector"+l.meantNamespace(s), "no namespace matches %s", describe(namespacePart(s)))
		return
	}
	if len(l.world.Pods) == 0 || len(podPart(s)) == 0 || l.known.pods.any(s) {
		return
	}
	l.dead[r.Ref.Key()] = true
	own := labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyPodNamespace, Operator: labels.In, Values: []string{p.object.Namespace}}
	if rs := namespacePart(s); len(rs) == 1 && labels.NewSelector(rs...).Key() == labels.NewSelector(own).Key() {
		if where := l.namespacesOf(labels.NewSelector(podPart(s)...)); len(where) > 0 {
			fix := "add k8s:" + labels.KeyPodNamespace + ": " + where[0] + " to the labels"
			if p.object.HasField("spec.podSelector") {
				fix = "put a namespaceSelector into the same peer, not into one beside it"
			}
			l.report(p, OtherNamespace, p.peerPath(r, i), fix, "the peer is pods of the namespace %s, and only pods of %s match %s",
				p.object.Namespace, strings.Join(where, ", "), describe(podPart(s)))
			return
		}
	}
	l.report(p, NoPeer, p.peerPath(r, i), "correct the labels"+l.hint(s), "%s, so the peer is nobody", l.lacking(s))
}

func ofNamespace(r labels.Requirement) bool {
	return r.Key == labels.KeyPodNamespace || strings.HasPrefix(r.Key, labels.KeyNamespaceLabels+".")
}

// namespacePart is what a selector asks of the namespace, podPart of the pod itself.
func namespacePart(s labels.Selector) []labels.Requirement {
	return slices.DeleteFunc(s.Requirements(), func(r labels.Requirement) bool { return !ofNamespace(r) })
}

func podPart(s labels.Selector) []labels.Requirement {
	return slices.DeleteFunc(s.Requirements(), func(r labels.Requirement) bool {
		return ofNamespace(r) || r.Key == labels.KeyCluster
	})
}

func (l *linter) namespaceExists(name string) bool { return slices.Contains(l.namespaceNames(), name) }

func (l *linter) namespaceNames() []string {
	var out []string
	for _, n := range l.world.Namespaces {
		out = append(out, n.Name)
	}
	return out
}

// namespacesOf lists the namespaces with pods that the selector matches.
func (l *linter) namespacesOf(s labels.Selector) []string {
	var out []string
	for _, p := range l.world.Pods {
		if s.Matches(p.Labels) {
			ns, _ := p.Labels.Get(labels.SourceK8s, labels.KeyPodNamespace)
			out = append(out, ns)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// lacking says which requirement no pod fulfils, or that no pod fulfils all.
func (l *linter) lacking(s labels.Selector) string {
	if r, ok := l.unmet(s); ok {
		return "no pod has " + describe([]labels.Requirement{r})
	}
	return "no pod has all of " + describe(podPart(s)) + " in " + describe(namespacePart(s))
}

func (l *linter) unmet(s labels.Selector) (labels.Requirement, bool) {
	for _, r := range podPart(s) {
		if !l.known.pods.any(labels.NewSelector(r)) {
			return r, true
		}
	}
	return labels.Requirement{}, false
}

// hint names the nearest value that a pod has for an unmet requirement.
func (l *linter) hint(s labels.Selector) string {
	r, ok := l.unmet(s)
	if !ok || len(r.Values) != 1 {
		return ""
	}
	return l.meant(r.Values[0], l.valuesOf(r.Key))
}

// valuesOf lists what the pods have for a label, each value once.
func (l *linter) valuesOf(key string) []string {
	values, ok := l.known.values[key]
	if ok {
		return values
	}
	seen := map[string]bool{}
	for _, p := range l.world.Pods {
		for _, a := range p.Labels {
			if a.Key == key && !seen[a.Value] {
				seen[a.Value] = true
				values = append(values, a.Value)
			}
		}
	}
	l.known.values[key] = values
	return values
}

// meant is ", did you mean X" for the nearest of the words, if one is near.
func (l *linter) meant(word string, known []string) string {
	best, distance := "", 3
	for _, k := range known {
		if d := spell.Distance(word, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (is %s meant?)", best)
}

func (l *linter) meantNamespace(s labels.Selector) string {
	for _, r := range namespacePart(s) {
		if len(r.Values) == 1 {
			if m := l.meant(r.Values[0], l.namespaceNames()); m != "" {
				return m
			}
		}
	}
	return ""
}

// describe prints requirements as authors write them.
func describe(rs []labels.Requirement) string {
	out := make([]string, len(rs))
	for i, r := range rs {
		text := strings.ReplaceAll(labels.NewSelector(r).String(), labels.KeyNamespaceLabels+".", "namespace label ")
		text = strings.ReplaceAll(text, labels.KeyPodNamespace, "namespace")
		out[i] = strings.ReplaceAll(strings.ReplaceAll(text, "k8s:", ""), "any:", "")
	}
	return strings.Join(out, ", ")
}
