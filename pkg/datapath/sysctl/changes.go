package sysctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/weirnet/weir/pkg/atomicfile"
)

const (
	procSys       = "/proc/sys"
	recordVersion = 1
)

// Change is a setting that was changed.
type Change struct {
	Name string `json:"name"` // path below /proc/sys
	Old  string `json:"old"`  // before the first change
	New  string `json:"new"`  // equal to Old: only dragged along by a later change
}

// Changes are the settings that this node's agent has changed. Safe for
// concurrent use.
type Changes struct {
	root string // /proc/sys, or a directory of a test
	file string

	mu   sync.Mutex
	made []Change // in the order in which they were made
}

type record struct {
	Version int      `json:"version"`
	Changes []Change `json:"changes"`
}

// Open reads the record of former lives from file, which need not exist. One that
// is damaged is set aside, which the caller tells: what was before is not known
// then, and Undo leaves it as it is.
func Open(file string) (*Changes, *atomicfile.Damage) { return open(procSys, file) }

func open(root, file string) (*Changes, *atomicfile.Damage) {
	c := &Changes{root: root, file: file}
	damage := atomicfile.Load(file, func(data []byte) error {
		var r record
		if err := json.Unmarshal(data, &r); err != nil {
			return err
		}
		if r.Version < 1 || slices.ContainsFunc(r.Changes, func(m Change) bool { return !filepath.IsLocal(m.Name) }) {
			return errors.New("it has no version, or names what is no kernel setting")
		}
		c.made = r.Changes
		return nil
	})
	return c, damage
}

// Apply gives settings their values and records what they were. A setting that
// the kernel does not have is an error that wraps fs.ErrNotExist; those before
// it stay applied and recorded. What a former build changed and this one leaves
// alone is put back first.
func (c *Changes) Apply(settings []Setting) error {
	_, err := c.apply(settings)
	return err
}

// apply is Apply, and returns what it had changed before and others have undone.
func (c *Changes) apply(settings []Setting) (undone []Change, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.putBackRetired(); err != nil {
		return nil, err
	}
	for _, s := range settings {
		old, err := c.read(s.Name)
		if err != nil {
			return undone, err
		}
		if old == s.Value {
			continue
		}
		change := Change{s.Name, old, s.Value}
		known := slices.ContainsFunc(c.made, func(m Change) bool { return m.Name == s.Name })
		if err := c.remember(change); err != nil {
			return undone, err
		}
		if err := c.write(s.Name, s.Value); err != nil {
			return undone, err
		}
		if known {
			undone = append(undone, change)
		}
	}
	return undone, nil
}

// pin remembers a setting that another one drags along: Undo gives it its value
// back. It must be recorded before that other one.
func (c *Changes) pin(p Change) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remember(p)
}

// find returns the recorded change of a setting.
func (c *Changes) find(name string) (Change, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.made, func(m Change) bool { return m.Name == name }); i >= 0 {
		return c.made[i], true
	}
	return Change{}, false
}

// remember adds a change to the record; the oldest former value is kept.
func (c *Changes) remember(n Change) error {
	next := slices.Clone(c.made)
	if i := slices.IndexFunc(next, func(m Change) bool { return m.Name == n.Name }); i >= 0 {
		next[i].New = n.New
	} else {
		next = append(next, n)
	}
	return c.save(next)
}

// List returns what is changed now, oldest first.
func (c *Changes) List() []Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.made)
}

// Undo puts all settings back, the last one first, and empties the record. It
// returns the names that it left alone because somebody else has changed them
// or they are gone. What could not be written stays in the record.
func (c *Changes) Undo() (leftAlone []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var failed []Change
	var errs []error
	for _, m := range slices.Backward(c.made) {
		now, err := c.read(m.Name)
		if pinned := m.Old == m.New; errors.Is(err, fs.ErrNotExist) || err == nil && now != m.New && !pinned {
			leftAlone = append(leftAlone, m.Name)
			continue
		}
		if err == nil {
			err = c.write(m.Name, m.Old)
		}
		if err != nil {
			failed = append(failed, m)
			errs = append(errs, err)
		}
	}
	slices.Reverse(failed)
	return leftAlone, errors.Join(append(errs, c.save(failed))...)
}

// save writes the record, or removes it when there is nothing to remember.
func (c *Changes) save(made []Change) error {
	var err error
	if len(made) == 0 {
		if err = os.Remove(c.file); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	} else {
		err = writeRecord(c.file, record{recordVersion, made})
	}
	if err != nil {
		return fmt.Errorf("write the record of changed kernel settings: %w", err)
	}
	c.made = made
	return nil
}

func writeRecord(file string, r record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Dir(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	return atomicfile.Write(file, append(data, '\n'), 0o640)
}

// Set gives settings their values without a record, for those of a veth.
func Set(settings []Setting) error {
	c := &Changes{root: procSys}
	for _, s := range settings {
		if err := c.write(s.Name, s.Value); err != nil {
			return err
		}
	}
	return nil
}

func (c *Changes) read(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(c.root, name))
	if err != nil {
		return "", fmt.Errorf("read kernel setting %s: %w", name, err)
	}
	return strings.TrimSpace(string(data)), nil
}

func (c *Changes) write(name, value string) error {
	f, err := os.OpenFile(filepath.Join(c.root, name), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("set kernel setting %s to %s: %w; /proc/sys must be writable for the agent", name, value, err)
	}
	return nil
}
