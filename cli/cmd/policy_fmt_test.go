package cmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const untidy = "kind: NetworkPolicy # a policy\nspec: {podSelector: {}}\nmetadata: {name: a}\napiVersion: networking.k8s.io/v1\n"
const tidy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy # a policy\nmetadata:\n  name: a\nspec:\n  podSelector: {}\n"

func TestFmt(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a.yaml")
	link := filepath.Join(dir, "b.yaml")
	require.NoError(t, os.WriteFile(name, []byte(untidy), 0o640))
	require.NoError(t, os.Symlink("a.yaml", link))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "c.json"), []byte("{}"), 0o600))

	code, out, _ := runWeir(t, "policy", "fmt", name)
	require.Equal(t, exitOK, code)
	require.Equal(t, tidy, out)

	code, out, _ = runWeir(t, "policy", "fmt", "--check", name)
	require.Equal(t, exitNo, code)
	require.Equal(t, name+"\n", out)
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, untidy, string(text), "neither of the two writes")

	before, err := os.Open(name)
	require.NoError(t, err)
	defer before.Close()
	code, out, _ = runWeir(t, "policy", "fmt", "-w", dir)
	require.Equal(t, exitOK, code)
	require.Equal(t, name+"\n", out, "the link holds the same file, which is in form by then")
	text, err = os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, tidy, string(text))
	old := make([]byte, len(untidy)+1)
	n, _ := before.Read(old)
	require.Equal(t, untidy, string(old[:n]), "who has the file open goes on reading the old one")
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink)
	info, err = os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 3, "no temporary file is left")

	code, out, _ = runWeir(t, "policy", "fmt", "--check", dir)
	require.Equal(t, exitOK, code)
	require.Empty(t, out)

	require.NoError(t, os.WriteFile(name, []byte(untidy), 0o640))
	code, _, _ = runWeir(t, "policy", "fmt", "-w", link)
	require.Equal(t, exitOK, code)
	info, err = os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink, "what the link leads to is written, not the link")
	text, err = os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, tidy, string(text))
}

func TestFmtReportsWhatItCannotFormatAndGoesOn(t *testing.T) {
	dir := t.TempDir()
	bad, good := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("kind: ["), 0o600))
	require.NoError(t, os.WriteFile(good, []byte(untidy), 0o600))
	code, out, errOut := runWeir(t, "policy", "fmt", "-w", dir)
	require.Equal(t, exitNo, code)
	require.Equal(t, good+"\n", out)
	require.Contains(t, errOut, bad)
	code, _, _ = runWeir(t, "policy", "fmt", "-w", "--check", dir)
	require.Equal(t, exitFailed, code)
}

func TestTheExamplesAreInForm(t *testing.T) {
	code, out, errOut := runWeir(t, "policy", "fmt", "--check", "../../examples")
	require.Equal(t, exitOK, code, "%s%s", out, errOut)
}
