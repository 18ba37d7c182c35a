package docs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/cli/cmd"
	"github.com/weirnet/weir/cli/folder"
	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// example is a YAML block and what is expected of it.
type example struct {
	heading  string
	line     int
	yaml     string
	verdicts []string
}

// parse reads the cast and the examples of a page.
func parse(text string) (cast string, out []example, err error) {
	heading, kind, start := "", "", 0
	var body []string
	for i, line := range strings.Split(text, "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case kind == "" && strings.HasPrefix(line, "#"):
			heading = strings.TrimLeft(line, "# ")
		case kind == "" && isFence:
			kind, start, body = fence, i+1, nil
		case !isFence:
			body = append(body, line)
		case kind == "yaml cast":
			cast, kind = strings.Join(body, "\n")+"\n", ""
		case kind == "yaml":
			out = append(out, example{heading: heading, line: start, yaml: strings.Join(body, "\n") + "\n"})
			kind = ""
		case kind == "verdicts":
			if len(out) == 0 || out[len(out)-1].verdicts != nil {
				return "", nil, fmt.Errorf("line %d: verdicts without an example before them", start)
			}
			for _, l := range body {
				if l, _, _ = strings.Cut(l, "#"); strings.TrimSpace(l) != "" {
					out[len(out)-1].verdicts = append(out[len(out)-1].verdicts, strings.TrimSpace(l))
				}
			}
			kind = ""
		default:
			kind = ""
		}
	}
	for _, e := range out {
		if len(e.verdicts) == 0 {
			return "", nil, fmt.Errorf("line %d: the example has no verdicts", e.line)
		}
	}
	return cast, out, nil
}

func TestExamplesOfThePolicyPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/policy.md")
	require.NoError(t, err)
	cast, examples, err := parse(string(text))
	require.NoError(t, err)
	require.NotEmpty(t, cast)
	require.Greater(t, len(examples), 20)
	for _, e := range examples {
		t.Run(fmt.Sprintf("%s, line %d", e.heading, e.line), func(t *testing.T) {
			problems := check(t.TempDir(), cast, e)
			require.Empty(t, problems)
		})
	}
}

// check returns what of the expectations does not hold.
func check(dir, cast string, e example) []string {
	for name, text := range map[string]string{"cast.yaml": cast, "example.yaml": e.yaml} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return []string{err.Error()}
		}
	}
	var problems []string
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	o := filesource.Options{ClusterName: "default", NodeName: simulate.NodeName}
	f, err := folder.Read(dir, o, types.ModeDefault)
	lint, refused := "", ""
	modes := map[string]types.Mode{"node": types.ModeDefault}
	for _, v := range e.verdicts {
		if rest, ok := strings.CutPrefix(v, "lint:"); ok {
			lint = strings.TrimSpace(rest)
			continue
		}
		if rest, ok := strings.CutPrefix(v, "refused:"); ok {
			refused = strings.TrimSpace(rest)
			if err == nil || !strings.Contains(err.Error(), refused) {
				wrong("refused with %v, want %q", err, refused)
			}
			continue
		}
		if err != nil {
			wrong("%v", err)
			continue
		}
		if who, word, ok := strings.Cut(strings.TrimPrefix(v, "enforcement "), ": "); ok && strings.HasPrefix(v, "enforcement ") {
			mode, err := types.ParseMode(word)
			if err != nil {
				wrong("%s: %v", v, err)
			}
			modes[who] = mode
			continue
		}
		if text := connection(f, modes, v); text != "" {
			wrong("%s: %s", v, text)
		}
	}
	if refused == "" {
		if got := lintCodes(dir); got != lint {
			wrong("lint finds %q, want %q", got, lint)
		}
	}
	return problems
}

var line = regexp.MustCompile(`^(\S+) -> (\S+) (\S+): (allow|deny)$`)

// connection judges a line with the resolver and with the oracle, each end in
// its mode. The resolver is asked once for each end, on a node in that mode.
func connection(f *folder.Folder, modes map[string]types.Mode, text string) string {
	m := line.FindStringSubmatch(text)
	if m == nil {
		return "cannot be read"
	}
	w, err := f.Sketch.World()
	if err != nil {
		return err.Error()
	}
	numbers := &simulate.Numbers{} // of all clusters, which judge the same two ends
	c, err := simulate.New(w, numbers)
	if err != nil {
		return err.Error()
	}
	from, err := end(c, m[1])
	if err != nil {
		return err.Error()
	}
	to, err := end(c, m[2])
	if err != nil {
		return err.Error()
	}
	proto, port, err := parsePort(m[3], to)
	if err != nil {
		return err.Error()
	}
	var judged [2]simulate.Side
	for i, name := range []string{m[1], m[2]} {
		var has bool
		if w.Mode, has = modes[name]; !has {
			w.Mode = modes["node"]
		}
		own, err := simulate.New(w, numbers)
		if err != nil {
			return err.Error()
		}
		both := [2]simulate.Side{}
		if both[0], both[1], err = own.Decide(from, to, proto, port); err != nil {
			return err.Error()
		}
		judged[i] = both[i]
	}
	egress, ingress := judged[0], judged[1]
	v := oracle.Judge(oracleWorld(w, modes), w.Policies, modes["node"], oracle.Connection{Src: from.Addr, Dst: to.Addr, Proto: proto, Port: port})
	got := egress.Verdict == types.Allow && ingress.Verdict == types.Allow
	if want := m[4] == "allow"; got != want || v.Allowed() != want {
		return fmt.Sprintf("allowed: %v by the resolver, %v by the oracle; egress %s, ingress %s", got, v.Allowed(), egress.Rule, ingress.Rule)
	}
	return ""
}

func end(c *simulate.Cluster, name string) (simulate.End, error) {
	if ends, ok := c.Ends(name); ok && len(ends) > 0 {
		return ends[0], nil
	}
	a, err := netip.ParseAddr(name)
	if err != nil {
		return simulate.End{}, fmt.Errorf("%s is no pod, node or address", name)
	}
	return c.End(a), nil
}

// parsePort reads PORT or PORT/PROTO; a name is that of the destination.
func parsePort(s string, to simulate.End) (wtypes.Proto, uint16, error) {
	text, protoText, given := strings.Cut(s, "/")
	proto := wtypes.ProtoTCP
	if given {
		var err error
		if proto, err = wtypes.ParseProto(protoText); err != nil {
			return 0, 0, err
		}
	}
	if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		return proto, uint16(n), nil
	}
	n, ok := to.NamedPorts[types.NamedPort{Name: text, Proto: proto}]
	if !ok {
		return 0, 0, fmt.Errorf("%s has no port %s", to.Name, s)
	}
	return proto, n, nil
}

func oracleWorld(w simulate.World, modes map[string]types.Mode) *oracle.World {
	out := &oracle.World{}
	for _, p := range w.Pods {
		pod := oracle.Pod{Name: p.Name, Labels: p.Labels, Addrs: p.Addrs, NamedPorts: p.NamedPorts}
		if m, own := modes[p.Name]; own {
			pod.Enforcement = types.EnforcementOf(m)
		}
		out.Pods = append(out.Pods, pod)
	}
	for _, h := range w.Hosts {
		if h.Labels != nil {
			out.Nodes = append(out.Nodes, oracle.Node{Name: h.Name, Local: h.Labels.HasReserved(labels.NameHost), Addrs: h.Addrs, Labels: h.Labels})
		}
	}
	return out
}

// lintCodes runs the command and returns the codes in its order.
func lintCodes(dir string) string {
	var out, errOut bytes.Buffer
	cmd.Execute([]string{"policy", "lint", "--format", "json", dir}, &out, &errOut)
	var report struct {
		Findings []struct{ Code string }
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return fmt.Sprintf("%v: %s", err, errOut.String())
	}
	var codes []string
	for _, f := range report.Findings {
		codes = append(codes, f.Code)
	}
	return strings.Join(codes, " ")
}

// An expectation that does not hold is found, whichever it is.
func TestWrongExpectationsAreFound(t *testing.T) {
	text, err := os.ReadFile("../../docs/policy.md")
	require.NoError(t, err)
	cast, examples, err := parse(string(text))
	require.NoError(t, err)
	for _, e := range examples {
		for i, v := range e.verdicts {
			turned := v + "?"
			if strings.HasSuffix(v, ": allow") {
				turned = strings.TrimSuffix(v, "allow") + "deny"
			} else if strings.HasSuffix(v, ": deny") {
				turned = strings.TrimSuffix(v, "deny") + "allow"
			}
			other := e
			other.verdicts = append([]string{}, e.verdicts...)
			other.verdicts[i] = turned
			require.NotEmpty(t, check(t.TempDir(), cast, other), "line %d: %s", e.line, turned)
		}
	}
	for _, bad := range []string{"```yaml\na: b\n```\n", "```verdicts\na -> b 1: allow\n```\n", "```yaml\na: b\n```\n```verdicts\n```\n"} {
		_, _, err := parse(bad)
		require.Error(t, err, bad)
	}
}
