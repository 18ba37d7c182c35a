package cmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/policy/format"
)

func (a *app) policyFmt() *cobra.Command {
	var write, check bool
	c := &cobra.Command{Use: "fmt PATH...", Short: "write policy YAML in one canonical form, comments kept",
		Long: "Prints the formatted text, writes it back with -w, or names the files that differ with --check (exit code 1 where one\n" +
			"does). A file that cannot be formatted without losing something is reported and left as it is.\n\n" + policyPathHelp +
			"\n- is the standard input. Files of JSON are left alone.",
		Example: "  weir policy fmt -w policies\n  weir policy fmt --check policies",
		Args:    atLeastArgs(1)}
	c.Flags().BoolVarP(&write, "write", "w", false, "write the files, each to a temporary name first, then renamed")
	c.Flags().BoolVar(&check, "check", false, "only name the files that are not in canonical form")
	c.RunE = func(c *cobra.Command, args []string) error {
		if write && check {
			return usageError{"--write and --check exclude each other; give one of them"}
		}
		return a.runFmt(c.InOrStdin(), args, write, check)
	}
	return c
}

func (a *app) runFmt(in io.Reader, paths []string, write, check bool) error {
	files, err := fmtFiles(paths)
	if err != nil {
		return err
	}
	no := false
	for i, name := range files {
		var text []byte
		if name == "-" {
			text, err = io.ReadAll(in)
		} else {
			text, err = filesource.ReadFile(name)
		}
		if err != nil {
			return err
		}
		out, err := format.Format(text)
		if err != nil {
			fmt.Fprintf(a.errOut, "%s: %s\n", name, err)
			no = true
			continue
		}
		switch {
		case check:
			if !bytes.Equal(text, out) {
				no = true
				fmt.Fprintln(a.out, name)
			}
		case write && name != "-":
			if bytes.Equal(text, out) {
				continue
			}
			if err := replaceFile(name, out); errors.Is(err, errLinked) {
				fmt.Fprintln(a.errOut, err)
				no = true
				continue
			} else if err != nil {
				return err
			}
			fmt.Fprintln(a.out, name)
		default:
			if i > 0 {
				fmt.Fprintln(a.out, "---")
			}
			if _, err := a.out.Write(out); err != nil {
				return err
			}
		}
	}
	if no {
		return errNo
	}
	return nil
}

// fmtFiles lists the YAML files of the paths.
func fmtFiles(paths []string) ([]string, error) {
	var files, rest []string
	for _, p := range paths {
		if p == "-" {
			files = append(files, p)
			continue
		}
		rest = append(rest, p)
	}
	sets, err := fileSets(rest)
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		for _, name := range s.files {
			if filepath.Ext(name) != ".json" {
				files = append(files, name)
			}
		}
	}
	return files, nil
}

// replaceFile writes a file beside the old one and renames it, so that nobody
// ever reads half of it. A link stays a link, the owner the owner, the mode the
// mode. A file of several names is refused: a rename would part them.
func replaceFile(name string, text []byte) (err error) {
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	info, err := os.Stat(target)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	if info.Sys().(*syscall.Stat_t).Nlink > 1 {
		return fmt.Errorf("%s: %w", name, errLinked)
	}
	// The leading dot keeps agents from reading it.
	tmp, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("writing %s: %w", name, err), os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(text)
	err = errors.Join(err, keepOwner(tmp, info), tmp.Chmod(info.Mode()&modeBits), tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), target)
}

var errLinked = errors.New("has other names (hard links), which would keep the old text; format a copy and write it back in place")

// modeBits are those of a mode that are a file's to keep.
const modeBits = os.ModePerm | os.ModeSetuid | os.ModeSetgid | os.ModeSticky

// keepOwner gives a new file the owner and group of the one that it replaces.
func keepOwner(f *os.File, old os.FileInfo) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	is, was := info.Sys().(*syscall.Stat_t), old.Sys().(*syscall.Stat_t)
	if is.Uid == was.Uid && is.Gid == was.Gid {
		return nil
	}
	return f.Chown(int(was.Uid), int(was.Gid))
}
