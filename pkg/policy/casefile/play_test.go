package casefile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// small is a world of two pods, one of them isolated by a policy, and a host.
const small = `{"format": "netpol-cases/1", "worlds": {"w": {
  "namespaces": {"x": {"team": "x"}},
  "pods": [
    {"ns": "x", "name": "a", "labels": {"app": "a"}, "ip": "10.0.0.1", "ports": [{"name": "web", "port": 80, "proto": "TCP"}]},
    {"ns": "x", "name": "b", "labels": {"app": "b"}, "ip": "10.0.0.2", "ports": [{"name": "web", "port": 81, "proto": "TCP"}]}],
  "externals": [{"name": "out", "ip": "192.0.2.77"}], "entities": ["host"], "probes": ["TCP/80", "TCP/81"]}},
 "cases": [{"id": "one", "suite": "s", "world": "w", "title": "t", "tags": [], "steps": [
  {"do": [{"apply": {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "n", "namespace": "x"},
    "spec": {"podSelector": {"matchLabels": {"app": "b"}}, "policyTypes": ["Ingress"],
      "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}], "ports": [{"port": "web"}]}]}}}],
   "order": ["x/a", "x/b", "ext/out", "ent/host"],
   "expect": {"TCP/80": ["sI..", ".s..", ".I--", "..--"], "TCP/81": ["s...", ".s..", ".I--", "..--"]}}]}]}`

func read(t *testing.T, text string) *Set {
	t.Helper()
	s, err := Read(strings.NewReader(text))
	require.NoError(t, err)
	return s
}

func TestACaseIsPlayedCellByCell(t *testing.T) {
	s := read(t, small)
	asked, wrong, err := s.Play(s.Cases[0], "default", ByMapState)
	require.NoError(t, err)
	require.Empty(t, wrong)
	require.Equal(t, 20, asked)
}

func TestAWrongCellIsNamedWithWhatDecided(t *testing.T) {
	s := read(t, strings.Replace(small, `"TCP/81": ["s...`, `"TCP/81": ["sE..`, 1))
	_, wrong, err := s.Play(s.Cases[0], "default", ByMapState)
	require.NoError(t, err)
	require.Len(t, wrong, 1)
	require.Equal(t, "step 0 x/a -> x/b TCP/81: want E, got .; egress allow by default allow, because no policy selects the pod in this direction; "+
		"ingress allow by NetworkPolicy x/n ingress[0]", wrong[0].String())
}

func TestWhatCannotBePlayedIsAnError(t *testing.T) {
	for what, c := range map[string]struct{ old, now, want string }{
		"a policy that is refused": {`"policyTypes": ["Ingress"]`, `"policyTypes": ["Sideways"]`, "step 0: operation 0"},
		"an address that is none":  {`"ip": "10.0.0.1"`, `"ip": "10.0.0"`, "pod x/a"},
		"an outside address":       {`"192.0.2.77"`, `"outside"`, "external out"},
		"an entity that is none":   {`["host"]`, `["hosts"]`, "the world holds"},
		"a protocol that is none":  {`"port": 81, "proto": "TCP"`, `"port": 81, "proto": "TPC"`, "pod x/b"},
		"one address of two":       {`"10.0.0.2"`, `"10.0.0.1"`, "both have the address 10.0.0.1"},
	} {
		s := read(t, strings.Replace(small, c.old, c.now, 1))
		_, _, err := s.Play(s.Cases[0], "default", ByMapState)
		require.ErrorContains(t, err, c.want, what)
	}
	s := read(t, strings.NewReplacer(`["host"]`, `["hosts"]`, `"ent/host"`, `"ent/hosts"`).Replace(small))
	_, _, err := s.Play(s.Cases[0], "default", ByMapState)
	require.ErrorContains(t, err, `entity "hosts" is not known`)
}

func TestBadFilesAreRefused(t *testing.T) {
	for what, c := range map[string]struct{ old, now, want string }{
		"another format":        {"netpol-cases/1", "netpol-cases/2", `format "netpol-cases/2" is not netpol-cases/1`},
		"a field too many":      {`"title"`, `"titel"`, `unknown field "titel"`},
		"a world that is none":  {`"world": "w"`, `"world": "v"`, `case one: there is no world "v"`},
		"a table too few":       {`"probes": ["TCP/80", `, `"probes": [`, "there are 2 tables for 1 probes"},
		"a row too few":         {`".I--", "..--"], "TCP/81"`, `".I--"], "TCP/81"`, "table TCP/80 has 3 rows for 4 names"},
		"a letter that is none": {`["sI..`, `["sX..`, `table TCP/80 row 0 is "sX.."`},
		"a port out of range":   {`"probes": ["TCP/80"`, `"probes": ["TCP/65536"`, "the port is no number from 0 to 65535"},
		"a protocol":            {`"probes": ["TCP/80"`, `"probes": ["TPC/80"`, `probe "TPC/80"`},
	} {
		text := strings.Replace(small, c.old, c.now, 1)
		require.NotEqual(t, small, text, what)
		_, err := Read(strings.NewReader(text))
		require.ErrorContains(t, err, c.want, what)
	}
	for text, want := range map[string]string{
		`{"format":"netpol-cases/1","worlds":{"w":null},"cases":[{"id":"a","world":"w"}]}`: `case a: there is no world "w"`,
		`{"format":"netpol-cases/1","worlds":{"w":{}},"cases":[{"id":"a","world":"w"}]}`:   "case a: it has no steps, so it asks nothing",
	} {
		_, err := Read(strings.NewReader(text))
		require.ErrorContains(t, err, want)
	}
}
