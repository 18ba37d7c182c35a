package cmd

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/policy/format"
	"github.com/weirnet/weir/pkg/policy/suggest"
	"github.com/weirnet/weir/pkg/spell"
)

func (a *app) policySuggest() *cobra.Command {
	var o suggest.Options
	c := &cobra.Command{Use: "suggest [FILE]", Short: "suggest the narrowest policies that let recorded flows pass",
		Long: "FILE holds events as weir monitor -o json prints them, one a line; - or no FILE is the standard input. The policies are\n" +
			"printed as YAML: for the pods that the events judge in a direction, rules for what passed there and nothing else.\n" +
			"Record until everything that has to work was seen. What had to be said more widely stands as a comment on top.\n" +
			"What passed in audit mode (weir endpoint audit ID on; events of type audit) counts as passed, so that audit, record and\n" +
			"suggest is the way to policies for pods whose own deny too much. Read them: they allow all that was recorded.",
		Example: "  weir monitor -o json > flows.jsonl\n  weir policy suggest flows.jsonl > policies/suggested.yaml",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{spell.Count(len(args), "argument") + " given; the form is: " + c.UseLine()}
			}
			return nil
		}}
	c.Flags().StringVar(&o.Kind, "kind", "", "NetworkPolicy or CiliumNetworkPolicy (default NetworkPolicy where it can say the same)")
	c.Flags().IntVar(&o.MaxAddresses, "max-addresses", 32, "most addresses outside to list one by one; where there are more, all outside is allowed")
	c.RunE = func(c *cobra.Command, args []string) error {
		in, name := c.InOrStdin(), "stdin"
		if len(args) == 1 && args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("reading flows: %w", err)
			}
			defer f.Close()
			in, name = f, args[0]
		}
		events, err := readEvents(in, name)
		if err != nil {
			return err
		}
		return a.runSuggest(events, o)
	}
	return c
}

// maxEvent is the longest line of an event.
const maxEvent = 1 << 20

// readEvents reads one event a line; empty lines are skipped.
func readEvents(in io.Reader, name string) ([]gen.Event, error) {
	var out []gen.Event
	s := bufio.NewScanner(in)
	s.Buffer(nil, maxEvent)
	line := 0
	for s.Scan() {
		line++
		text := bytes.TrimSpace(s.Bytes())
		if len(text) == 0 {
			continue
		}
		var e gen.Event
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, fmt.Errorf("%s:%d: not an event as weir monitor -o json prints it: %w", name, line, err)
		}
		out = append(out, e)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, line+1, err)
	}
	return out, nil
}

func (a *app) runSuggest(events []gen.Event, o suggest.Options) error {
	r, err := suggest.From(events, o)
	if err != nil {
		return err
	}
	if len(r.Objects) == 0 {
		return fmt.Errorf("the %d events judge no pod, so there is nothing to suggest; record with weir monitor -o json while the pods work", len(events))
	}
	if a.format == "json" {
		policies := []any{}
		for _, p := range r.Objects {
			policies = append(policies, p.Value)
		}
		return a.printJSON(map[string]any{"policies": policies, "notes": append([]string{}, r.Notes...)})
	}
	var b bytes.Buffer
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "# %s\n", n)
	}
	for i, p := range r.Objects {
		text, err := yaml.Marshal(p.Value)
		if err != nil {
			return fmt.Errorf("writing %s: %w", p.Resource, err)
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		b.Write(text)
	}
	out, err := format.Format(b.Bytes())
	if err != nil {
		return fmt.Errorf("writing the policies: %w", err)
	}
	_, err = a.out.Write(out)
	return err
}
