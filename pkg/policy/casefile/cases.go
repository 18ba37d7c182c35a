package casefile

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	wtypes "github.com/weirnet/weir/pkg/types"
)

// Set is all cases.
type Set struct {
	Worlds map[string]*WorldData `json:"worlds"`
	Cases  []Case                `json:"cases"`
}

// WorldData is the state of a world before any step.
type WorldData struct {
	Namespaces map[string]map[string]string `json:"namespaces"` // name to labels
	Pods       []Pod                        `json:"pods"`
	Externals  []External                   `json:"externals"`
	Entities   []string                     `json:"entities"`
	Probes     []Probe                      `json:"probes"`
}

// Pod is a managed pod. Every pod listens on the port of every probe.
type Pod struct {
	Namespace string            `json:"ns"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
	IP        string            `json:"ip"`
	Ports     []Port            `json:"ports"`
}

// ID is "namespace/name", as the tables name the pod.
func (p Pod) ID() string { return p.Namespace + "/" + p.Name }

// Port is a container port.
type Port struct {
	Name  string `json:"name"` // may be empty
	Port  uint16 `json:"port"`
	Proto string `json:"proto"`
}

// External is an unmanaged host outside the cluster; tables name it "ext/name".
type External struct {
	Name string `json:"name"`
	IP   string `json:"ip"`
}

// Probe is the protocol and destination port of a connection.
type Probe struct {
	Proto wtypes.Proto
	Port  uint16
}

// String prints "TCP/80".
func (p Probe) String() string { return fmt.Sprintf("%s/%d", p.Proto, p.Port) }

// UnmarshalText reads what String prints.
func (p *Probe) UnmarshalText(b []byte) error {
	proto, port, _ := strings.Cut(string(b), "/")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return fmt.Errorf("probe %q: the port is no number from 0 to 65535", b)
	}
	if p.Proto, err = wtypes.ParseProto(proto); err != nil {
		return fmt.Errorf("probe %q: %w", b, err)
	}
	p.Port = uint16(n)
	return nil
}

// Case is a list of steps on one world.
type Case struct {
	ID    string   `json:"id"`
	Suite string   `json:"suite"`
	World string   `json:"world"`
	Title string   `json:"title"`
	Tags  []string `json:"tags"`
	Steps []Step   `json:"steps"`
}

// Step is operations and what must hold after them.
type Step struct {
	Do     []Op               `json:"do"`
	Order  []string           `json:"order"`  // names of rows and columns
	Expect map[Probe][]string `json:"expect"` // a row per source, a letter per destination
}

// Op is one operation; exactly one field is set.
type Op struct {
	Apply           json.RawMessage `json:"apply"` // a Kubernetes object
	DeletePolicy    *PolicyName     `json:"deletePolicy"`
	SetNamespace    *Namespace      `json:"setNamespace"`
	DeleteNamespace string          `json:"deleteNamespace"` // with all that is in it
	SetPod          *Pod            `json:"setPod"`          // create or replace
	DeletePod       string          `json:"deletePod"`       // "ns/name"
}

// PolicyName names a policy object.
type PolicyName struct {
	Kind      string `json:"kind"`
	Namespace string `json:"ns"`
	Name      string `json:"name"`
}

// Namespace is a namespace and its labels.
type Namespace struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

// Letters of a cell that asks nothing; the others are those of simulate.Letter.
const (
	ItSelf   = 's' // source and destination are one
	NobodyIs = '-' // neither end is a pod
)

// Cell is one verdict of a table.
type Cell struct {
	Probe    Probe
	From, To string // names as in Step.Order
	Want     byte
}

// String prints "x/a -> y/b TCP/80".
func (c Cell) String() string { return c.From + " -> " + c.To + " " + c.Probe.String() }

// Skip reports whether the cell asks nothing.
func (c Cell) Skip() bool { return c.Want == ItSelf || c.Want == NobodyIs }

// Cells returns every cell of the step that asks something, table by table in
// the order of probes.
func (s Step) Cells(probes []Probe) []Cell {
	var out []Cell
	for _, p := range probes {
		for i, row := range s.Expect[p] {
			for j := range len(row) {
				if c := (Cell{Probe: p, From: s.Order[i], To: s.Order[j], Want: row[j]}); !c.Skip() {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// Format is what the field "format" of a file says.
const Format = "netpol-cases/1"

// Read reads all cases of a file.
func Read(r io.Reader) (*Set, error) {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	var file struct {
		Format string `json:"format"`
		Set
	}
	if err := dec.Decode(&file); err != nil {
		return nil, fmt.Errorf("read the policy cases: %w", err)
	}
	if file.Format != Format {
		return nil, fmt.Errorf("read the policy cases: format %q is not %s", file.Format, Format)
	}
	for _, c := range file.Cases {
		if file.Worlds[c.World] == nil {
			return nil, fmt.Errorf("case %s: there is no world %q", c.ID, c.World)
		}
		if len(c.Steps) == 0 {
			return nil, fmt.Errorf("case %s: it has no steps, so it asks nothing", c.ID)
		}
		for i, s := range c.Steps {
			if err := file.check(c, s); err != nil {
				return nil, fmt.Errorf("case %s step %d: %w", c.ID, i, err)
			}
		}
	}
	return &file.Set, nil
}

func (s *Set) check(c Case, step Step) error {
	w := s.Worlds[c.World]
	if len(step.Expect) != len(w.Probes) {
		return fmt.Errorf("there are %d tables for %d probes", len(step.Expect), len(w.Probes))
	}
	for _, p := range w.Probes {
		if len(step.Expect[p]) != len(step.Order) {
			return fmt.Errorf("table %s has %d rows for %d names", p, len(step.Expect[p]), len(step.Order))
		}
		for i, row := range step.Expect[p] {
			if len(row) != len(step.Order) || strings.Trim(row, ".IEBs-") != "" {
				return fmt.Errorf("table %s row %d is %q", p, i, row)
			}
		}
	}
	return nil
}
