package cmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/testutils"
)

// The shop's tests by the programs in the kernel; nothing of it is left behind.
func TestTheShopKeepsItsPromisesInTheKernel(t *testing.T) {
	env := testutils.Kernel(t, testutils.Tool("clang-19"))
	code, out, errOut := runWeir(t, "policy", "test", "--kernel", "--bpffs", env.BPFRoot, shop)
	if code != exitOK || !strings.Contains(out, "38 expectations passed, 0 failed\n") {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	left, err := os.ReadDir(env.BPFRoot)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	temp := t.TempDir()
	if code, errOut := unread(t, temp, "policy", "test", "--kernel", "--bpffs", env.BPFRoot, shop); code != exitPipe {
		t.Errorf("with nobody who reads: exit code %d, %s", code, errOut)
	}
	for _, dir := range []string{env.BPFRoot, temp} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("with nobody who reads, left behind in %s: %v (%v)", dir, left, err)
		}
	}
	path := filepath.Join(t.TempDir(), "cases.json")
	if err := os.WriteFile(path, []byte(policyCases), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errOut = runWeir(t, "policy", "test", "--kernel", "--bpffs", env.BPFRoot, path)
	if code != exitNo || !strings.HasSuffix(out, "\n1 cases passed, 2 failed\n") || !strings.Contains(out, "step 0 x/a -> x/b TCP/80: want I, got .") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	for _, none := range []string{filepath.Join(env.BPFRoot, "none"), t.TempDir()} {
		code, _, errOut = runWeir(t, "policy", "test", "--kernel", "--bpffs", none, shop)
		if code != exitFailed || !strings.Contains(errOut, "--bpffs: ") || !strings.Contains(errOut, "mount one with: mount -t bpf bpf /sys/fs/bpf") {
			t.Errorf("without a bpffs: exit code %d, %s", code, errOut)
		}
	}
}
