package testfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// What a test's document says it is.
const (
	APIVersion = "weir.net/v1"
	Kind       = "PolicyTest"
)

// maxExpectations is how many connections one test may ask for; three long lists
// stand for far more than their text shows.
const maxExpectations = 100_000

// Is reports whether a document is a test.
func Is(d k8s.Document) bool { return d.Kind == Kind }

// MayHold reports whether a text may hold a test. To find that out costs much less
// than to read it as YAML, which may spell the kind with escapes or in UTF-16.
func MayHold(text []byte) bool {
	return bytes.Contains(text, []byte(Kind)) || bytes.ContainsAny(text, "\\\x00")
}

// File is one test.
type File struct {
	Name         string // of the object
	Path         string // of the file
	Namespaces   map[string]map[string]string
	Pods         []simulate.SketchedPod
	Hosts        []simulate.SketchedHost
	Expectations []Expectation
}

// Expectation is a connection and what the policies must make of it. From, To
// and Port are as written; a list has been taken apart.
type Expectation struct {
	Line           int
	From, To, Port string
	Family         string // IPv4, IPv6, or empty: those that both ends have
	Verdict        types.Verdict
	Rule           string // empty: any
}

// The form of the document.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Namespaces []struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"namespaces"`
	Pods []struct {
		Namespace      string            `json:"namespace"`
		Name           string            `json:"name"`
		Labels         map[string]string `json:"labels"`
		ServiceAccount string            `json:"serviceAccount"`
		Addresses      []string          `json:"addresses"`
		Ports          []port            `json:"ports"`
	} `json:"pods"`
	Outside []struct {
		Name      string   `json:"name"`
		Addresses []string `json:"addresses"`
	} `json:"outside"`
	Expect []expect `json:"expect"`
}

type expect struct {
	From    words  `json:"from"`
	To      words  `json:"to"`
	Port    words  `json:"port"`
	Family  string `json:"family"`
	Verdict string `json:"verdict"`
	Rule    string `json:"rule"`
}

type port struct {
	Name     string `json:"name"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
}

// words is a text, a number, or a list of them.
type words []string

// UnmarshalJSON keeps what is neither as a word that is nothing, for read to refuse.
func (w *words) UnmarshalJSON(b []byte) error {
	var list []json.RawMessage
	if json.Unmarshal(b, &list) != nil {
		list = []json.RawMessage{b}
	}
	for _, item := range list {
		var s string
		if json.Unmarshal(item, &s) != nil {
			if s = string(item); strings.Trim(s, "0123456789") != "" {
				s = ""
			}
		}
		*w = append(*w, s)
	}
	return nil
}

// reader collects what is wrong with one document.
type reader struct {
	doc    k8s.Document
	lineOf func(string) int
	errs   []error
}

func (r *reader) fail(path, format string, args ...any) {
	r.errs = append(r.errs, &k8s.FieldError{File: r.doc.File, Line: r.lineOf(path), Kind: r.doc.Kind, Name: r.doc.Name,
		Path: path, Problem: fmt.Sprintf(format, args...)})
}

// Read reads a document of the kind. The error joins a *k8s.FieldError for
// everything that is wrong.
func Read(d k8s.Document) (*File, error) {
	r := &reader{doc: d, lineOf: func(string) int { return d.Line }}
	if d.APIVersion != APIVersion {
		r.fail("apiVersion", "%q is not known for this kind; give %s", d.APIVersion, APIVersion)
		return nil, errors.Join(r.errs...)
	}
	var doc document
	var err error
	if r.lineOf, err = d.DecodeLined(&doc); err != nil {
		return nil, err
	}
	f := &File{Name: doc.Metadata.Name, Path: d.File, Namespaces: map[string]map[string]string{}}
	if f.Name == "" {
		r.fail("metadata.name", "is missing; give the test a name")
	}
	for i, n := range doc.Namespaces {
		if n.Name == "" {
			r.fail(fmt.Sprintf("namespaces[%d].name", i), "is missing")
		}
		f.Namespaces[n.Name] = n.Labels
	}
	for i, p := range doc.Pods {
		at := fmt.Sprintf("pods[%d]", i)
		if p.Namespace == "" || p.Name == "" || strings.Contains(p.Namespace+p.Name, "/") {
			r.fail(at, "needs a namespace and a name")
		}
		f.Pods = append(f.Pods, simulate.SketchedPod{Namespace: p.Namespace, Name: p.Name, ServiceAccount: p.ServiceAccount,
			Labels: p.Labels, Addrs: r.addrs(p.Addresses, at), Ports: r.ports(p.Ports, at)})
	}
	for i, h := range doc.Outside {
		at := fmt.Sprintf("outside[%d]", i)
		if h.Name == "" || len(h.Addresses) == 0 {
			r.fail(at, "needs a name and addresses")
		}
		f.Hosts = append(f.Hosts, simulate.SketchedHost{Host: simulate.Host{Name: h.Name, Addrs: r.addrs(h.Addresses, at)}})
	}
	if len(doc.Expect) == 0 {
		r.fail("expect", "is empty; a test that expects nothing shows nothing")
	}
	for i, e := range doc.Expect {
		at := fmt.Sprintf("expect[%d]", i)
		one := r.expectation(e, at)
		if n := len(e.From) * len(e.To); n > maxExpectations || len(f.Expectations)+n*len(e.Port) > maxExpectations {
			r.fail(at, "asks for more than %d connections in one test; split it", maxExpectations)
			break
		}
		for _, one.From = range e.From {
			for _, one.To = range e.To {
				for _, one.Port = range e.Port {
					f.Expectations = append(f.Expectations, one)
				}
			}
		}
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	return f, nil
}

// expectation reads a member of expect, whose lists are taken apart later.
func (r *reader) expectation(e expect, at string) Expectation {
	one := Expectation{Line: r.lineOf(at), Family: e.Family, Rule: e.Rule}
	switch e.Verdict {
	case "allow":
		one.Verdict = types.Allow
	case "deny":
	default:
		r.fail(at+".verdict", "%q is not known; give allow or deny", e.Verdict)
	}
	if e.Family != "" && e.Family != IPv4 && e.Family != IPv6 {
		r.fail(at+".family", "%q is not known; give IPv4 or IPv6, or leave it out for both", e.Family)
	}
	r.words(e.From, at+".from", "a pod, a host, node or an address")
	r.words(e.To, at+".to", "a pod, a host, node or an address")
	if r.words(e.Port, at+".port", "a number or name with or without /PROTOCOL, or ICMP") {
		for _, p := range e.Port {
			if _, err := ParsePort(p); err != nil {
				r.fail(at+".port", "%s", err)
			}
		}
	}
	return one
}

// words reports whether every word is one.
func (r *reader) words(w words, path, want string) bool {
	if len(w) == 0 {
		r.fail(path, "is missing; give %s, or a list of them", want)
	}
	for _, s := range w {
		if s == "" {
			r.fail(path, "is no text; give %s, or a list of them", want)
			return false
		}
	}
	return len(w) > 0
}

func (r *reader) addrs(texts []string, at string) []netip.Addr {
	var out []netip.Addr
	for i, s := range texts {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			r.fail(fmt.Sprintf("%s.addresses[%d]", at, i), "%q is not an IP address", s)
			continue
		}
		out = append(out, a.Unmap())
	}
	return out
}

func (r *reader) ports(ports []port, at string) []simulate.Port {
	var out []simulate.Port
	for i, p := range ports {
		path := fmt.Sprintf("%s.ports[%d]", at, i)
		proto := wtypes.ProtoTCP
		if p.Protocol != "" {
			var err error
			if proto, err = wtypes.ParseProto(p.Protocol); err != nil || !proto.HasPorts() {
				r.fail(path+".protocol", "%q is not known; give TCP, UDP or SCTP", p.Protocol)
			}
		}
		if p.Port < 1 || p.Port > 65535 {
			r.fail(path+".port", "%d is not a port; give 1 to 65535", p.Port)
		}
		out = append(out, simulate.Port{Name: p.Name, Proto: proto, Port: uint16(p.Port)})
	}
	return out
}

// Port is a destination port as people write it.
type Port struct {
	Name   string // of a port of the destination; empty: Number counts
	Number uint16
	Proto  wtypes.Proto
}

// ParsePort reads "80", "http", "53/UDP", "dns/UDP" or "ICMP".
func ParsePort(s string) (Port, error) {
	word, protocol, given := strings.Cut(s, "/")
	p := Port{Proto: wtypes.ProtoTCP}
	if !given && (strings.EqualFold(word, "icmp") || strings.EqualFold(word, "icmpv6")) {
		p.Proto = wtypes.ProtoICMP // the family of the addresses says which
		return p, nil
	}
	if given {
		var err error
		if p.Proto, err = wtypes.ParseProto(protocol); err != nil || !p.Proto.HasPorts() {
			return p, fmt.Errorf("port %q: %q is not known; give TCP, UDP or SCTP", s, protocol)
		}
	}
	if strings.Trim(word, "0123456789") != "" {
		p.Name = word
		return p, nil
	}
	n, err := strconv.ParseUint(word, 10, 16)
	if err != nil || n == 0 {
		return p, fmt.Errorf("port %q is out of range; give 1 to 65535 or the name of a port", s)
	}
	p.Number = uint16(n)
	return p, nil
}
