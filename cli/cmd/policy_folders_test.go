package cmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const oneDeny = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: x}\nspec: {podSelector: {}, policyTypes: [Ingress]}\n"

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestN59AFolderWithoutYAMLIsNotValid(t *testing.T) {
	dir := t.TempDir()
	for _, what := range []string{"nothing", "a folder without YAML", "a hidden folder", "a recipe"} {
		switch what {
		case "a folder without YAML":
			write(t, filepath.Join(dir, "below", "notes.txt"), "x")
		case "a hidden folder":
			write(t, filepath.Join(dir, ".hidden", "a.yaml"), oneDeny)
		case "a recipe":
			write(t, filepath.Join(dir, "kust", "kustomization.yaml"), "resources: [a.yaml]\n")
			write(t, filepath.Join(dir, "kust", "a.yaml"), oneDeny)
		}
		for _, verb := range []string{"validate", "lint"} {
			code, _, errOut := runWeir(t, "policy", verb, dir)
			require.Equal(t, exitFailed, code, "%s: %s: %s", verb, what, errOut)
			require.Contains(t, errOut, dir, what)
			if what == "a recipe" {
				require.Contains(t, errOut, "kubectl kustomize "+dir+"/kust | weir policy validate -", verb)
			} else {
				require.Contains(t, errOut, "holds no YAML", verb)
			}
		}
	}
}

func TestN59FoldersBelowAreReadByAllCommands(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "team", "a.yaml"), oneDeny)
	write(t, filepath.Join(dir, "chart", "Chart.yaml"), "name: c\n")
	code, out, errOut := runWeir(t, "policy", "validate", dir)
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "1 polic")
	require.Contains(t, out, dir+"/chart: warning: is not read")
	require.Contains(t, out, "helm template "+dir+"/chart")
	_, out, _ = runWeir(t, "policy", "lint", dir)
	require.Contains(t, out, "1 policy")
}
