package labels

import (
	"cmp"
	"fmt"
	"strings"
)

// Sources say who vouches for a label.
const (
	SourceK8s       = "k8s"       // Kubernetes objects
	SourceContainer = "container" // the container runtime
	SourceReserved  = "reserved"  // Weir itself: host, world, init ...
	SourceCIDR      = "cidr"      // an address prefix, see CIDRLabel
	SourceCIDRGroup = "cidrgroup" // a named group of prefixes
	SourceFQDN      = "fqdn"      // a DNS name
	SourceNode      = "node"      // labels of a Node object
	SourceGenerated = "gen"       // made by the agent
	SourceDirectory = "directory" // a folder of files
	SourceUnspec    = "unspec"    // nobody said
	SourceAny       = "any"       // in selectors only: every source
)

// Keys that Weir derives from Kubernetes objects; pods cannot set them.
const (
	KeyPodNamespace    = "io.kubernetes.pod.namespace"
	KeyNamespaceLabels = "io.cilium.k8s.namespace.labels"
	KeyNamespaceName   = KeyNamespaceLabels + "." + NamespaceName
	KeyCluster         = "io.cilium.k8s.policy.cluster"
	KeyServiceAccount  = "io.cilium.k8s.policy.serviceaccount"
)

// NamespaceName is the label of a Namespace that the API server keeps equal to the
// namespace's name.
const NamespaceName = "kubernetes.io/metadata.name"

// Names of the reserved source.
const (
	NameHost          = "host"
	NameWorld         = "world"
	NameWorldIPv4     = "world-ipv4"
	NameWorldIPv6     = "world-ipv6"
	NameUnmanaged     = "unmanaged"
	NameHealth        = "health"
	NameInit          = "init"
	NameRemoteNode    = "remote-node"
	NameKubeAPIServer = "kube-apiserver"
	NameIngress       = "ingress"
)

// Label is one statement about an endpoint or an address. It is comparable;
// the zero value is no label.
type Label struct {
	Source string // one of the Source constants or a name of the same kind
	Key    string // never empty in a label of a set
	Value  string // may be empty
}

// New returns a label; an empty source becomes SourceUnspec.
func New(source, key, value string) Label {
	if source == "" {
		source = SourceUnspec
	}
	return Label{Source: source, Key: key, Value: value}
}

// Reserved returns the label reserved:name.
func Reserved(name string) Label { return Label{Source: SourceReserved, Key: name} }

// Parse reads "source:key=value". Without "source:" the source is
// SourceUnspec, "$key" means "reserved:key", and a missing "=value" is an empty
// value. A backslash before a backslash, ';', '=', ':' or '$' takes that character
// literally, as String writes it; any other backslash is an error, and so is an
// unescaped ';', an empty key or an empty source before ':'.
func Parse(s string) (Label, error) {
	l, err := parse(s)
	if err != nil {
		return Label{}, fmt.Errorf("label %q: %w; write source:key=value", s, err)
	}
	return l, nil
}

func parse(s string) (Label, error) {
	if rest, ok := strings.CutPrefix(s, "$"); ok {
		s = SourceReserved + ":" + rest
	}
	var parts [3]string // source, key, value
	at, hasSource := 1, false
	var cur strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
			if i == len(s) || !strings.ContainsRune(`\;=:$`, rune(s[i])) {
				return Label{}, fmt.Errorf("a backslash must be followed by one of \\ ; = : $")
			}
			cur.WriteByte(s[i])
		case c == ';':
			return Label{}, fmt.Errorf("unescaped ';' at byte %d", i)
		case c == ':' && at == 1 && !hasSource:
			parts[0], hasSource = cur.String(), true
			cur.Reset()
		case c == '=' && at == 1:
			parts[1], at = cur.String(), 2
			cur.Reset()
		default:
			cur.WriteByte(c)
		}
	}
	parts[at] = cur.String()
	switch {
	case hasSource && parts[0] == "":
		return Label{}, fmt.Errorf("the source before ':' is empty")
	case parts[1] == "":
		return Label{}, fmt.Errorf("the key is empty")
	}
	return New(parts[0], parts[1], parts[2]), nil
}

// String prints "source:key=value", or "source:key" where the value is empty.
// Parse reads it back.
func (l Label) String() string {
	if l.Value == "" {
		return escapeName(l.source()) + ":" + escapeName(l.Key)
	}
	return escapeName(l.source()) + ":" + escapeName(l.Key) + "=" + escapeValue(l.Value)
}

// appendKey writes the canonical form "source:key=value;".
func (l Label) appendKey(b *strings.Builder) {
	b.WriteString(escapeName(l.source()))
	b.WriteByte(':')
	b.WriteString(escapeName(l.Key))
	b.WriteByte('=')
	b.WriteString(escapeValue(l.Value))
	b.WriteByte(';')
}

func (l Label) source() string {
	if l.Source == "" {
		return SourceUnspec
	}
	return l.Source
}

func (l Label) compareName(source, key string) int {
	return cmp.Or(cmp.Compare(l.Source, source), cmp.Compare(l.Key, key))
}

// MarshalText writes the form of String.
func (l Label) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what Parse reads.
func (l *Label) UnmarshalText(b []byte) error {
	v, err := Parse(string(b))
	if err != nil {
		return err
	}
	*l = v
	return nil
}

var (
	nameEscapes  = strings.NewReplacer(`\`, `\\`, ";", `\;`, "=", `\=`, ":", `\:`, "$", `\$`)
	valueEscapes = strings.NewReplacer(`\`, `\\`, ";", `\;`)
)

func escapeName(s string) string {
	if !strings.ContainsAny(s, `\;=:$`) {
		return s
	}
	return nameEscapes.Replace(s)
}

func escapeValue(s string) string {
	if !strings.ContainsAny(s, `\;`) {
		return s
	}
	return valueEscapes.Replace(s)
}
