package cmd

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/testutils"
)

func TestFmtKeepsOwnerAndGroup(t *testing.T) {
	testutils.Kernel(t) // only root may give a file away
	name := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(name, []byte(untidy), 0o640))
	require.NoError(t, os.Chown(name, 1234, 2345))
	code, _, errOut := runWeir(t, "policy", "fmt", "-w", name)
	require.Equal(t, exitOK, code, errOut)
	info, err := os.Stat(name)
	require.NoError(t, err)
	is := info.Sys().(*syscall.Stat_t)
	require.Equal(t, []uint32{1234, 2345}, []uint32{is.Uid, is.Gid})
	require.Equal(t, os.FileMode(0o640), info.Mode())
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, tidy, string(text))
}
