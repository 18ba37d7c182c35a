package differential

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirnet/weir/pkg/testutils"
)

const (
	mutantSeed     = "WEIR_DIFF_SEED=1"
	mutantVerdicts = "WEIR_DIFF_VERDICTS=60000"
	compared       = "TestKernelMapStateAndOracleAgree"
)

// Every mutation is compiled over the unchanged tree, in a scratch folder, and
// must be seen as a disagreement; without one the same worlds agree.
func TestMutations(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"), testutils.Tool("go"))
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := compare(t, self); err != nil {
		t.Fatalf("without a mutation: %v\n%s", err, out)
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			start := time.Now()
			out, err := compare(t, build(t, root, m))
			if err == nil || !strings.Contains(out, disagreement) {
				t.Fatalf("%s, %q for %q: not found out (%s): %v\n%s", m.file, m.new, m.old, m.what, err, out)
			}
			t.Logf("%s: %s: found out, %.1f s", m.file, m.what, time.Since(start).Seconds())
		})
	}
}

// build makes this package's test binary with the mutation.
func build(t *testing.T, root string, m mutation) string {
	t.Helper()
	file, dir := filepath.Join(root, m.file), t.TempDir()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		t.Fatalf("%s holds %q %d times, want once; the code has changed, so write the mutation anew", m.file, m.old, n)
	}
	mutant, overlay := filepath.Join(dir, "mutant"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{mutant: strings.Replace(string(text), m.old, m.new, 1), overlay: string(replace)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "differential.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, ".")
	cmd.Env = append(os.Environ(), "GOPROXY=off") // a test's namespace has no network
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the mutation does not compile: %v\n%s", err, out)
	}
	return binary
}

// compare runs the comparison of a test binary.
func compare(t *testing.T, binary string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^"+compared+"$", "-test.v", "-test.timeout", "2m")
	cmd.Env = append(os.Environ(), mutantSeed, mutantVerdicts, "WEIR_KERNEL_TESTS=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
