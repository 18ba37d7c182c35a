package folder

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
)

const world = `{apiVersion: v1, kind: Namespace, metadata: {name: x, labels: {team: x}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x, labels: {app: a}}, spec: {serviceAccountName: robot, containers: [{name: c, ports: [{name: web, containerPort: 80}]}]}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: done, namespace: x}, spec: {containers: []}, status: {phase: Succeeded, podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: agent, namespace: x}, spec: {hostNetwork: true, containers: []}, status: {podIP: 192.0.2.5}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.0.2.5}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 192.0.2.6}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: x}, spec: {podSelector: {}}}
`

const test = `{apiVersion: weir.net/v1, kind: PolicyTest, metadata: {name: t}, expect: [{from: n2, to: a, port: 80, verdict: deny}]}`

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

func readDir(path string) (*Folder, error) {
	return Read(path, filesource.Options{ClusterName: "c", NodeName: "n1", Labels: labels.DefaultFilter()}, types.ModeAlways)
}

func TestAFolderIsReadAsAWorld(t *testing.T) {
	dir := write(t, map[string]string{
		"world.yaml": world, "a_test.yaml": test, "b.yml": "---\n" + test, ".hidden.yaml": "{", ".below/c.yaml": "{", "chart/Chart.yaml": "{", "notes.txt": "{",
		"lab/outside.yaml": "hosts: [{name: out, addresses: [203.0.113.1], ports: [{port: 443, protocol: TCP}]}]",
	})
	f, err := readDir(dir)
	require.NoError(t, err)
	require.Empty(t, f.Broken)
	require.Len(t, f.Tests, 2)
	require.Equal(t, filepath.Join(dir, "a_test.yaml"), f.Tests[0].Path)
	require.Equal(t, types.ModeAlways, f.Sketch.Mode)
	require.Len(t, f.Sketch.Policies, 1)
	require.Len(t, f.Sketch.Pods, 1, "a pod that has ended and one in the node's network are no pods")
	require.Equal(t, "robot", f.Sketch.Pods[0].ServiceAccount)
	c, err := f.Cluster()
	require.NoError(t, err)
	require.Equal(t, []string{"x/a", "out", simulate.NodeName, "n2"}, c.Names())
	for name, reserved := range map[string]string{simulate.NodeName: labels.NameHost, "n2": labels.NameRemoteNode} {
		ends, _ := c.Ends(name)
		require.True(t, ends[0].Labels.HasReserved(reserved), name)
	}
	require.EqualValues(t, 443, f.Sketch.Ports()("out")[0].Port)
	asked, _, err := f.Tests[0].Run(f.Sketch)
	require.NoError(t, err)
	require.True(t, asked[0].Passed(), asked[0].Detail())

	one, err := readDir(filepath.Join(dir, "a_test.yaml"))
	require.NoError(t, err)
	require.Len(t, one.Tests, 1, "of a file only its own tests count")
	require.Len(t, one.Sketch.Pods, 1, "the world is that of its folder")
}

func TestATestThatCannotBeReadIsBrokenAndTheOthersAreNot(t *testing.T) {
	dir := write(t, map[string]string{
		"world.yaml": world, "a_test.yaml": test, "b_test.yaml": "{", "c_test.yaml": test + "\n---\n" + `{apiVersion: weir.net/v1, kind: PolicyTest, metadata: {name: u}, expekt: []}`,
	})
	f, err := readDir(dir)
	require.NoError(t, err)
	require.Len(t, f.Tests, 2)
	require.Len(t, f.Broken, 2)
	require.Equal(t, filepath.Join(dir, "b_test.yaml"), f.Broken[0].Path)
	require.ErrorContains(t, f.Broken[0].Err, "not readable as YAML")
	require.ErrorContains(t, f.Broken[1].Err, "c_test.yaml:3: PolicyTest u: expekt: is not a field that exists here; did you mean expect?")
}

func TestHalfAFolderIsNotJudged(t *testing.T) {
	for what, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a policy that is refused":   {map[string]string{"p.yaml": "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: x}, spec: {podSelektor: {}}}"}, "p.yaml:1: spec.podSelektor"},
		"a file that is no YAML":     {map[string]string{"p.yaml": "{"}, "not readable as YAML"},
		"two hosts of one address":   {map[string]string{"lab/outside.yaml": "hosts: [{name: a, addresses: [203.0.113.1]}, {name: b, addresses: [203.0.113.1]}]"}, "a and b both have the address 203.0.113.1"},
		"a host without an address":  {map[string]string{"lab/outside.yaml": "hosts: [{name: a}]"}, "a host needs a name and addresses"},
		"a host's protocol":          {map[string]string{"lab/outside.yaml": "hosts: [{name: a, addresses: [203.0.113.1], ports: [{port: 1, protocol: TPC}]}]"}, "host a"},
		"a field of hosts":           {map[string]string{"lab/outside.yaml": "host: []"}, `unknown field "host"`},
		"a pod with the node's name": {map[string]string{"p.yaml": world, "lab/outside.yaml": "hosts: [{name: x/a, addresses: [203.0.113.1]}]"}, "x/a is there twice"},
	} {
		f, err := readDir(write(t, c.files))
		if err == nil {
			_, err = f.Cluster()
		}
		require.ErrorContains(t, err, c.want, what)
	}
	_, err := readDir(filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "no such file")
}
