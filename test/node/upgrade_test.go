package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/test/box"
)

// formerCommit is the version that nodes are upgraded from.
const formerCommit = "c41cb37"

// formerBinaries builds the agent and the plugin of the former version from the
// repository's history, once: build/former/COMMIT keeps them. The agent is behind a
// script that takes the flag out of its arguments that it does not know.
func formerBinaries(t *testing.T) (dir string) {
	t.Helper()
	repo := filepath.Dir(filepath.Dir(box.Binary(t, "weir-agent")))
	dir = filepath.Join(repo, "build", "former", formerCommit)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(dir + ".lock") // of two tests only one builds
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "weir-agent")); err == nil {
		return dir
	}
	source := t.TempDir()
	do := func(where, script string) {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
		cmd.Dir = where
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "git", "-C", repo, "cat-file", "-e", formerCommit+"^{commit}").CombinedOutput(); err != nil {
		t.Fatalf("this clone has no commit %s, from which the upgrade is tried: %v %s; fetch it with: git fetch --unshallow", formerCommit, err, out)
	}
	do(repo, fmt.Sprintf("git archive %s | tar -x -C '%s'", formerCommit, source))
	do(source, fmt.Sprintf("go run ./pkg/datapath/loader/builtin >/dev/null; rm -rf '%[1]s'; mkdir -p '%[1]s/real'; go build -o '%[1]s/real/weir-agent' ./daemon; CGO_ENABLED=0 go build -o '%[1]s/weir-cni' ./plugins/weir-cni", dir))
	script := fmt.Sprintf(`#!/bin/bash
args=()
while [ $# -gt 0 ]; do
	if [ "$1" = --data-dir ]; then shift 2; else args+=("$1"); shift; fi
done
exec '%s/real/weir-agent' "${args[@]}"
`, dir)
	if err := os.WriteFile(filepath.Join(dir, "weir-agent"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// leftOnNode lists what of an agent a node still has: links, routes, pins, files.
func leftOnNode(t *testing.T, b *box.Box) (left []string) {
	t.Helper()
	_, links := run(t, b, nodeCommand(t, "ip", "-o", "link", "show", "type", "veth"))
	_, filters := run(t, b, nodeCommand(t, "sh", "-c", "ip -4 route show table all type unicast; ip -6 route show table all type unicast | grep -v 'dev lo'"))
	for _, line := range strings.Split(links+filters, "\n") {
		if strings.TrimSpace(line) != "" {
			left = append(left, line)
		}
	}
	for _, dir := range []string{b.Record.BPFRoot, filepath.Join(b.Dir(), "run"), filepath.Join(b.Dir(), "data"), filepath.Join(b.Dir(), "cni")} {
		err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil && path != dir {
				left = append(left, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return left
}
