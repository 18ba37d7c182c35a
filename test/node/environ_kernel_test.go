package node

import (
	"testing"

	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// A lab comes up and goes in a shell whose variables are of another agent.
func TestN57VariablesOfAnotherAgentDoNotReachALab(t *testing.T) {
	env := testutils.Kernel(t)
	for name, value := range map[string]string{
		"WEIR_SOCKET_PATH": "/nowhere/weir.sock", "WEIR_RUN_DIR": "/nowhere", "WEIR_CONFIG": "/nowhere/weir.yaml", "WEIR_NO_SUCH_SETTING": "1", "WEIR_IPV4_GATEWAY": "192.0.2.1",
	} {
		t.Setenv(name, value)
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot})
	if _, err := b.Agent.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Close()
}
