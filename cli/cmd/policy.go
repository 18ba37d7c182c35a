package cmd

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/filesource"
)

const policyRefHelp = "KIND is NetworkPolicy, CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy or ClusterNetworkPolicy; the last two have the NAME alone."

func (a *app) policy() *cobra.Command {
	return group("policy", "list, look into and change policies",
		a.policyListCommand(),
		&cobra.Command{Use: "get KIND [NAMESPACE/]NAME", Short: "show one policy with its rules", Long: policyRefHelp, Args: exactArgs(2), RunE: a.policyGet},
		&cobra.Command{Use: "apply FILE", Short: "put the policies of a YAML file in force, all or none of them", Long: "FILE is a path, or - for the standard input.", Args: exactArgs(1), RunE: a.policyApply},
		&cobra.Command{Use: "delete KIND [NAMESPACE/]NAME", Short: "take one policy out of force", Long: policyRefHelp, Args: exactArgs(2), RunE: a.policyDelete},
		&cobra.Command{Use: "validate PATH...", Short: "check files or folders of YAML, without an agent", Long: "PATH is a file, - for the standard input, or a folder with those below it, as the agent reads it.\nEvery problem is printed with file, line and field, also those of tests (kind PolicyTest), which the agent passes over.\nExit code 1 where there is one.",
			Args: atLeastArgs(1), RunE: a.policyValidate},
		a.policyLint(), a.policyFmt(), a.policySuggest(),
		a.policyTest(), a.policyTable(), a.policyExplain(), a.policyDiff(),
	)
}

func (a *app) policyListCommand() *cobra.Command {
	var inForce bool
	c := &cobra.Command{Use: "list", Short: "list the policies in force", Args: exactArgs(0), RunE: func(c *cobra.Command, _ []string) error {
		if inForce {
			return a.policyListInForce(c)
		}
		return a.policyList(c)
	}}
	c.Flags().BoolVar(&inForce, "in-force", false, "with the version of its file that each comes from, since when that has been in force, and the state of the file")
	return c
}

// policyInForce is a policy with the version of the file that it comes from.
type policyInForce struct {
	Ref  gen.PolicyRef   `json:"ref"`
	File *gen.SourceFile `json:"file,omitempty"`
}

func (a *app) policyListInForce(c *cobra.Command) error {
	list, err := a.agent().Policies(c.Context())
	if err != nil {
		return err
	}
	files, err := a.agent().Sources(c.Context())
	if err != nil {
		return err
	}
	from := origins(files)
	answer := []policyInForce{}
	var lines [][]string
	for _, p := range list.Policies {
		v := from[p.Ref.File]
		one := policyInForce{Ref: p.Ref}
		if v.known {
			one.File = &v.file
		}
		answer = append(answer, one)
		lines = append(lines, append([]string{p.Ref.Kind, or(p.Ref.Namespace), p.Ref.Name, place(p.Ref)}, v.columns()...))
	}
	return a.show(answer, func() error { return a.rows("KIND NAMESPACE NAME PLACE SINCE VERSION FILE-STATE", lines) })
}

func (a *app) policyList(c *cobra.Command) error {
	agent := a.agent()
	list, err := agent.Policies(c.Context())
	if err != nil {
		return err
	}
	return a.show(list, func() error {
		var lines [][]string
		for _, p := range list.Policies {
			isolates := []string{}
			if p.IsolatesIngress {
				isolates = append(isolates, "ingress")
			}
			if p.IsolatesEgress {
				isolates = append(isolates, "egress")
			}
			lines = append(lines, []string{p.Ref.Kind, or(p.Ref.Namespace), p.Ref.Name, joined(isolates), fmt.Sprint(len(p.Rules)), place(p.Ref)})
		}
		if err := a.rows("KIND NAMESPACE NAME ISOLATES RULES PLACE", lines); err != nil {
			return err
		}
		_, err := fmt.Fprintf(a.out, "revision %d\n", list.Revision)
		return err
	})
}

// place prints "file:line" of a policy, or "-".
func place(r gen.PolicyRef) string {
	if r.File == "" {
		return "-"
	}
	return fmt.Sprintf("%s:%d", r.File, r.Line)
}

// policyRef splits NAMESPACE/NAME; a clusterwide policy has the name alone.
func policyRef(args []string) (kind, namespace, name string) {
	namespace, name, ok := strings.Cut(args[1], "/")
	if !ok {
		namespace, name = "", args[1]
	}
	return args[0], namespace, name
}

func (a *app) policyGet(c *cobra.Command, args []string) error {
	agent := a.agent()
	kind, namespace, name := policyRef(args)
	p, err := agent.Policy(c.Context(), kind, namespace, name)
	if err != nil {
		return err
	}
	return a.show(p, func() error {
		fmt.Fprintf(a.out, "%s %s (%s)\nsubject: %s\nisolates ingress: %v, egress: %v\n", p.Ref.Kind, args[1], place(p.Ref), or(p.Subject), p.IsolatesIngress, p.IsolatesEgress)
		for _, r := range p.Rules {
			peers, ports := "anybody", "every port"
			if r.Peers != nil {
				peers = "peers " + listOr(*r.Peers, "nobody")
			}
			if r.Ports != nil {
				ports = "ports " + listOr(*r.Ports, "none")
			}
			log := ""
			if r.Log != "" {
				log = fmt.Sprintf(", log %q", r.Log)
			}
			fmt.Fprintf(a.out, "%s[%d] line %d: %s %s, %s%s\n", r.Section, r.Index, r.Line, r.Verdict, peers, ports, log)
		}
		return nil
	})
}

func listOr(parts []string, none string) string {
	if len(parts) == 0 {
		return none
	}
	return strings.Join(parts, ", ")
}

func (a *app) policyApply(c *cobra.Command, args []string) error {
	text, name, err := readInput(args[0])
	if err != nil {
		return err
	}
	agent := a.agent()
	change, err := agent.PutPolicy(c.Context(), name, text)
	if err != nil {
		return err
	}
	return a.changed(change, "applied")
}

func (a *app) policyDelete(c *cobra.Command, args []string) error {
	agent := a.agent()
	kind, namespace, name := policyRef(args)
	change, err := agent.DeletePolicy(c.Context(), kind, namespace, name)
	if err != nil {
		return err
	}
	return a.changed(change, "deleted")
}

func (a *app) changed(change gen.PolicyChange, what string) error {
	return a.show(change, func() error {
		for _, p := range change.Policies {
			fmt.Fprintf(a.out, "%s %s %s\n", what, p.Kind, strings.TrimPrefix(p.Namespace+"/"+p.Name, "/"))
		}
		_, err := fmt.Fprintf(a.out, "revision %d\n", change.Revision)
		return err
	})
}

// readInput reads a file, or the standard input for "-".
func readInput(path string) (text []byte, name string, err error) {
	if path == "-" {
		text, err = io.ReadAll(os.Stdin)
		return text, "stdin", err
	}
	text, err = os.ReadFile(path)
	return text, path, err
}

// withInput puts a file with the standard input in the place of "-".
func withInput(args []string) (paths []string, done func(), err error) {
	at := slices.Index(args, "-")
	if at < 0 {
		return args, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "weir-")
	if err != nil {
		return nil, nil, err
	}
	done = func() { os.RemoveAll(dir) }
	text, _, err := readInput("-")
	name := filepath.Join(dir, "stdin")
	if err == nil {
		err = os.WriteFile(name, text, 0o600)
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("reading the standard input: %w", err)
	}
	paths = slices.Clone(args)
	paths[at] = name
	return paths, done, nil
}

// policyValidate reads the paths as the agent would.
func (a *app) policyValidate(_ *cobra.Command, args []string) error {
	args, done, err := withInput(args)
	if err != nil {
		return err
	}
	defer done()
	for _, path := range args {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			if _, err := filesource.Files(path); err != nil {
				return err
			}
		}
	}
	snap, problems, err := filesource.Load(args, filesource.Options{ClusterName: clusterName})
	if err != nil {
		return err
	}
	tests, err := filesource.CheckTests(args)
	if err != nil {
		return err
	}
	problems = append(problems, tests...)
	answer := gen.Validation{Valid: len(filesource.Errors(problems)) == 0, Policies: []gen.PolicyRef{}, Problems: []gen.Problem{}}
	for _, id := range slices.Sorted(maps.Keys(snap.Policies)) {
		for _, p := range snap.Policies[id] {
			answer.Policies = append(answer.Policies, gen.PolicyRef{Kind: p.Resource.Kind, Namespace: p.Resource.Namespace, Name: p.Resource.Name, File: p.Resource.File, Line: p.Resource.Line})
		}
	}
	for _, p := range problems {
		answer.Problems = append(answer.Problems, gen.Problem{File: p.File, Line: p.Line, Field: p.Field, Text: p.Text, Warning: p.Warning})
	}
	err = a.show(answer, func() error {
		for _, p := range problems {
			fmt.Fprintln(a.out, p)
		}
		_, err := fmt.Fprintln(a.out, counts(len(answer.Policies), len(snap.Pods), len(problems), "problem"))
		return err
	})
	if err == nil && !answer.Valid {
		return errNo
	}
	return err
}
