package filesource

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortsOfInitContainersCountIfTheyRunOn(t *testing.T) {
	const pod = `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}, spec: {
  initContainers: [{name: once, ports: [{name: setup, containerPort: 81}]}, {name: sidecar, restartPolicy: Always, ports: [{name: proxy, containerPort: 82}]}],
  containers: [{name: c, ports: [{name: web, containerPort: 80}]}]}}`
	load := func(text string) (*Snapshot, []Problem) {
		name := filepath.Join(t.TempDir(), "a.yaml")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		s, problems, err := Load([]string{name}, Options{})
		require.NoError(t, err)
		return s, problems
	}
	s, problems := load(pod)
	require.Empty(t, problems)
	var names []string
	for _, p := range s.Pods["x/a"].NamedPorts {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{"proxy", "web"}, names)
	require.Len(t, s.Ports["x/a"], 2, "nobody listens on the port of one that has ended")
	_, problems = load(strings.Replace(pod, "containerPort: 81", "containerPort: 0", 1))
	require.Len(t, problems, 1)
	require.Equal(t, "spec.initContainers[0].ports[0].containerPort", problems[0].Field)
}
