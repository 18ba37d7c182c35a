package loader

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/atomicfile"
)

// RefusedError says that the verifier refused a program.
type RefusedError struct {
	Reason  string // the verifier's last words, one line
	LogFile string // the whole log; empty if it could not be written
	Err     error  // the kernel's error
}

// Error is one line.
func (e *RefusedError) Error() string {
	where := "the full log could not be written"
	if e.LogFile != "" {
		where = "the full log is in " + e.LogFile
	}
	return fmt.Sprintf("the verifier refused a program: %s (%s); %s", e.Reason, e.Err, where)
}

// Unwrap gives the kernel's error, for example EACCES.
func (e *RefusedError) Unwrap() error { return e.Err }

// keepPrograms removes all other programs and the maps and variables that only they need.
func keepPrograms(spec *ebpf.CollectionSpec, names []string) {
	needed := map[string]bool{callsMap: true}
	for name, p := range spec.Programs {
		if !slices.Contains(names, name) {
			delete(spec.Programs, name)
			continue
		}
		for i := range p.Instructions {
			if ins := &p.Instructions[i]; ins.IsLoadFromMap() && ins.Reference() != "" {
				needed[ins.Reference()] = true
			}
		}
	}
	for name, m := range spec.Maps {
		if !needed[name] {
			delete(spec.Maps, name)
		} else if !strings.HasPrefix(name, ".") {
			m.Contents = nil // the loader fills the program array itself
		}
	}
	for name, v := range spec.Variables {
		if !needed[v.SectionName] {
			delete(spec.Variables, name)
		}
	}
}

// withoutLines returns a copy whose instructions carry no source lines, the
// largest part of a loaded program's memory.
func withoutLines(spec *ebpf.CollectionSpec) *ebpf.CollectionSpec {
	c := spec.Copy()
	for _, p := range c.Programs {
		for i := range p.Instructions {
			p.Instructions[i] = p.Instructions[i].WithSource(nil)
		}
	}
	return c
}

// explained returns the programs with their source lines and the constants and
// limits of plain.
func (p part) explained() *ebpf.CollectionSpec {
	c := p.lines.Copy()
	for name, v := range c.Variables {
		v.Value = slices.Clone(p.plain.Variables[name].Value)
	}
	for name, m := range c.Maps {
		m.MaxEntries = p.plain.Maps[name].MaxEntries
	}
	return c
}

// loadCollection loads p without line information. If the kernel refuses it,
// it is loaded again with all information, only to write the verifier's log to
// logFile.
func (l *Loader) loadCollection(p part, maps map[string]*ebpf.Map, logFile string) (*ebpf.Collection, error) {
	opts := ebpf.CollectionOptions{MapReplacements: maps}
	opts.Programs.LogDisabled = true
	coll, err := ebpf.NewCollectionWithOptions(p.plain, opts)
	if err == nil {
		return coll, nil
	}
	opts.Programs.LogDisabled = false
	opts.Programs.LogLevel = ebpf.LogLevelInstruction | ebpf.LogLevelStats
	if errors.Is(err, unix.E2BIG) { // a million instructions would be hundreds of megabytes of log
		opts.Programs.LogLevel = ebpf.LogLevelStats
	}
	coll, again := ebpf.NewCollectionWithOptions(p.explained(), opts)
	if again == nil {
		l.cfg.Logger.Warn("Kernel refused programs once and took them at the second try", "error", firstLine(err.Error()))
		return coll, nil
	}
	var refused *ebpf.VerifierError
	if !errors.As(again, &refused) {
		return nil, fmt.Errorf("load into the kernel: %w", err)
	}
	out := &RefusedError{Reason: lastWords(refused.Log), LogFile: logFile, Err: refused.Cause}
	if werr := writeLog(logFile, again.Error()+"\n\n"+strings.Join(refused.Log, "\n")+"\n"); werr != nil {
		l.cfg.Logger.Warn("Verifier log could not be written", "path", logFile, "error", werr)
		out.LogFile = ""
	}
	return nil, out
}

// lastWords is the last line of a verifier log that is not statistics.
func lastWords(log []string) string {
	for _, line := range slices.Backward(log) {
		line = strings.TrimSpace(line)
		statistics := false
		for _, p := range []string{"processed ", "verification time", "stack depth", "insns processed", "mark_precise"} {
			statistics = statistics || strings.HasPrefix(line, p)
		}
		if line != "" && !statistics {
			return line
		}
	}
	return "no reason given"
}

func writeLog(path, text string) error {
	if err := atomicfile.Dir(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return atomicfile.Write(path, []byte(text), 0o640)
}
