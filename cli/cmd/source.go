package cmd

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
)

func (a *app) source() *cobra.Command {
	return group("source", "look into the folders that objects are read from",
		&cobra.Command{Use: "list", Short: "list the folders and files, and what of them is in force",
			Long: "A file that is wrong, or a folder that is missing, another one, or empty, changes nothing: its last good version stays in\n" +
				"force. LAST-GOOD says since when that has been, KEEPS which objects left a file and are in force all the same.",
			Args: exactArgs(0), RunE: a.sourceList},
		&cobra.Command{Use: "accept FOLDER", Short: "say that a folder is meant to be as it is now",
			Long: "What the folder does not hold any more is deleted, also where it is missing, is another one than before, or holds nothing;\n" +
				"and YAML in folders below counts that an older agent did not read. A file that is wrong keeps its last good version all the\n" +
				"same: remove it to delete what it held. For hosts without a hand an empty file " + emptyMark + " in a folder without YAML does it.",
			Args: exactArgs(1), RunE: a.sourceAccept},
	)
}

// emptyMark is filesource.EmptyMark, for the help.
const emptyMark = ".weir-empty"

func (a *app) sourceList(c *cobra.Command, _ []string) error {
	list, err := a.agent().Sources(c.Context())
	if err != nil {
		return err
	}
	return a.show(list, func() error {
		var lines [][]string
		var wrong []string
		for _, s := range list.Sources {
			name := or(s.Path)
			if s.Path == "" {
				name = "API"
			}
			lines = append(lines, []string{name, "-", string(s.State), moment(s.Since), "-", "-"})
			if s.Text != "" {
				wrong = append(wrong, s.Text)
			}
			for _, f := range s.Files {
				rel, err := filepath.Rel(s.Path, f.Path)
				if err != nil || s.Path == "" {
					rel = filepath.Base(f.Path)
				}
				lines = append(lines, []string{name, rel, string(f.State), moment(f.Since), moment(f.LastGood), joined(f.Keeps)})
				if f.Text != "" {
					wrong = append(wrong, f.Text)
				}
			}
		}
		if err := a.rows("SOURCE FILE STATE SINCE LAST-GOOD KEEPS", lines); err != nil {
			return err
		}
		_, err := fmt.Fprint(a.out, strings.Join(append(wrong, ""), "\n"))
		return err
	})
}

// moment prints a time, "-" where there is none.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func (a *app) sourceAccept(c *cobra.Command, args []string) error {
	path := args[0]
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	s, err := a.agent().AcceptSource(c.Context(), path)
	if err != nil {
		return err
	}
	return a.show(s, func() error {
		_, err := fmt.Fprintf(a.out, "accepted %s with %d files; state %s\n", s.Path, len(s.Files), s.State)
		return err
	})
}

// origin is where a policy in force comes from: its file, which text of it, and
// since when that has been in force.
type origin struct {
	file  gen.SourceFile
	known bool
}

// origins finds the files of sources by their paths.
func origins(list gen.SourceList) map[string]origin {
	out := map[string]origin{}
	for _, s := range list.Sources {
		for _, f := range s.Files {
			out[f.Path] = origin{f, true}
		}
	}
	return out
}

// columns are SINCE, VERSION and STATE of "policy list --in-force".
func (v origin) columns() []string {
	if !v.known {
		return []string{"-", "-", "-"}
	}
	return []string{moment(v.file.LastGood), v.file.Sha256[:min(12, len(v.file.Sha256))], string(v.file.State)}
}
