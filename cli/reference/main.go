package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/weirnet/weir/cli/cmd"
	"github.com/weirnet/weir/pkg/atomicfile"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments given; the form is: reference FILE", len(args))
	}
	page, err := Page()
	if err != nil {
		return err
	}
	return atomicfile.Write(args[0], page, 0o644)
}

// Page makes the text of docs/cli.md.
func Page() ([]byte, error) {
	// The defaults of flags come from the environment of whoever runs a command.
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "WEIR_") {
			if err := os.Unsetenv(name); err != nil {
				return nil, err
			}
		}
	}
	var b bytes.Buffer
	b.WriteString("<!-- Written by go generate ./cli from the commands. Do not edit. -->\n\n# Commands\n")
	root := cmd.Root()
	if err := write(&b, root); err != nil {
		return nil, err
	}
	return append(bytes.TrimRight(b.Bytes(), "\n"), '\n'), nil
}

// write adds a command and those below it.
func write(b *bytes.Buffer, c *cobra.Command) error {
	c.DisableAutoGenTag = true
	var one bytes.Buffer
	if err := doc.GenMarkdownCustom(c, &one, link); err != nil {
		return fmt.Errorf("describing %s: %w", c.CommandPath(), err)
	}
	b.WriteString("\n")
	b.Write(bytes.TrimRight(one.Bytes(), "\n"))
	b.WriteString("\n")
	for _, child := range c.Commands() {
		if !child.IsAvailableCommand() || child.IsAdditionalHelpTopicCommand() || child.Name() == "help" {
			continue
		}
		if err := write(b, child); err != nil {
			return err
		}
	}
	return nil
}

// link turns the name of the file that cobra would write for a command into the
// anchor of its heading.
func link(file string) string {
	return "#" + strings.ReplaceAll(strings.TrimSuffix(file, ".md"), "_", "-")
}
