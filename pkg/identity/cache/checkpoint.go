package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strconv"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

// formatVersion of the checkpoint. A greater one is read as far as it is known.
const formatVersion = 1

// fields are the members of a JSON object that this version does not know.
type fields map[string]json.RawMessage

// checkpoint is the file. One writer at a time; who waits while the file is
// being written finds its entry already there, or writes for all who wait.
type checkpoint struct {
	path    string
	log     *slog.Logger
	turn    chan struct{} // holds the right to touch what follows
	flushed uint64        // generation that is on disk
	extra   fields        // of the whole file
	write   func(path string, data []byte) error
}

// replace writes the file. The agent's lock on the state directory rules out a
// second writer.
func replace(path string, data []byte) error { return atomicfile.WriteSync(path, data, 0o600) }

func newCheckpoint(path string, log *slog.Logger) *checkpoint {
	f := &checkpoint{path: path, log: log, turn: make(chan struct{}, 1), write: replace}
	f.turn <- struct{}{}
	return f
}

// record is one identity in the file.
type record struct {
	ID     identity.NumericIdentity
	Labels string // LabelArray.Key
	extra  fields
}

// contents is what the file must say.
type contents struct {
	next    map[string]identity.NumericIdentity // by name of the scope
	records []record
}

// contents copies the state for the file. Entries born up to the returned
// generation are in it.
func (c *Cache) contents() (contents, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := contents{next: map[string]identity.NumericIdentity{}, records: make([]record, 0, len(c.byID))}
	for scope, space := range c.spaces {
		s.next[scope.String()] = space.next
	}
	for _, e := range c.byID {
		s.records = append(s.records, record{e.id, e.key, e.extra})
	}
	return s, c.generation
}

func (f *checkpoint) flush(ctx context.Context, generation uint64, get func() (contents, uint64)) error {
	select {
	case <-f.turn:
		defer func() { f.turn <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.flushed >= generation {
		return nil
	}
	s, at := get()
	data, err := encode(s, f.extra)
	if err != nil {
		return fmt.Errorf("encode %s: %w", f.path, err)
	}
	if err := f.write(f.path, data); err != nil {
		return fmt.Errorf("write %s: %w; free space or repair the state directory", f.path, err)
	}
	f.flushed = at
	return nil
}

func encode(s contents, extra fields) ([]byte, error) {
	slices.SortFunc(s.records, func(a, b record) int { return int(int64(a.ID) - int64(b.ID)) })
	all := fields{}
	for k, v := range extra {
		all[k] = v
	}
	for k, v := range map[string]any{"version": formatVersion, "next": s.next, "identities": s.records} {
		raw, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		all[k] = raw
	}
	return json.Marshal(all)
}

// MarshalJSON writes the known members and those of a newer writer.
func (r record) MarshalJSON() ([]byte, error) {
	key, err := json.Marshal(r.Labels)
	if err != nil {
		return nil, err
	}
	if len(r.extra) == 0 {
		return fmt.Appendf(nil, `{"id":%d,"labels":%s}`, uint32(r.ID), key), nil
	}
	all := fields{"id": fmt.Appendf(nil, "%d", uint32(r.ID)), "labels": key}
	for k, v := range r.extra {
		all[k] = v
	}
	return json.Marshal(map[string]json.RawMessage(all))
}

// UnmarshalJSON keeps members that it does not know.
func (r *record) UnmarshalJSON(data []byte) error {
	var all fields
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	if err := errors.Join(all.take("id", &r.ID), all.take("labels", &r.Labels)); err != nil {
		return err
	}
	if len(all) > 0 {
		r.extra = all
	}
	return nil
}

func decode(data []byte) (s contents, extra fields, err error) {
	if err := json.Unmarshal(data, &extra); err != nil {
		return s, nil, err
	}
	version := 0
	if err := extra.take("version", &version); err != nil {
		return s, nil, err
	}
	if version < 1 {
		return s, nil, fmt.Errorf("version %d is not known", version)
	}
	if err := errors.Join(extra.take("next", &s.next), extra.take("identities", &s.records)); err != nil {
		return s, nil, err
	}
	return s, extra, nil
}

// take decodes a member and removes it from those not known.
func (f fields) take(name string, into any) error {
	raw, ok := f[name]
	if !ok {
		return fmt.Errorf("member %q is missing", name)
	}
	delete(f, name)
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("member %q: %w", name, err)
	}
	return nil
}

// restore reads the checkpoint into an empty cache: its own, or that of a former
// build where there is none.
func (c *Cache) restore(former string) {
	damage := atomicfile.Load(c.file.path, c.read)
	if damage == nil && c.file.extra == nil && former != "" {
		damage = atomicfile.Load(former, func(data []byte) error {
			if err := c.read(data); err != nil {
				return err
			}
			c.file.extra = fields{}
			if err := c.file.write(c.file.path, data); err != nil {
				return nil // the next write of the checkpoint says so
			}
			return os.Remove(former)
		})
	}
	if damage == nil {
		return
	}
	n := 0
	text, _ := os.ReadFile(damage.Path) // of a directory there is none
	for _, m := range numbersInDamage.FindAllSubmatch(text, -1) {
		if id, err := strconv.ParseUint(string(m[1]), 10, 32); err == nil {
			c.busy[identity.NumericIdentity(id)] = true
			n++
		}
	}
	c.log.Warn("Checkpoint of identities cannot be used: label sets that are not known otherwise get new numbers, the old numbers stay unused until the next restart",
		"error", damage, "numbers", n)
}

// read takes the records of a checkpoint in.
func (c *Cache) read(data []byte) error {
	s, extra, err := decode(data)
	if err != nil {
		return err
	}
	c.file.extra = extra
	for _, r := range s.records {
		if err := c.hold(r); err != nil {
			c.busy[r.ID] = true
			c.log.Warn("An identity of the checkpoint is not usable; its labels get a new number and its number stays unused",
				"file", c.file.path, "identity", uint32(r.ID), "labels", r.Labels, "error", err)
		}
	}
	for _, space := range c.spaces {
		if n := s.next[space.scope.String()]; space.holds(n) {
			space.next = n
		}
	}
	return nil
}

// hold takes a record in for its label set, without users.
func (c *Cache) hold(r record) error {
	a, err := labels.ParseKey(r.Labels)
	if err != nil {
		return err
	}
	scope, err := scopeOf(a)
	if err != nil {
		return err
	}
	if r.ID.Scope() != scope || r.ID.IsReserved() || r.ID == 0 {
		return fmt.Errorf("the number does not belong to scope %s", scope)
	}
	if c.byID[r.ID] != nil || c.byKey[r.Labels] != nil {
		return fmt.Errorf("the number or the labels are there twice")
	}
	e := &entry{id: r.ID, array: a, key: r.Labels, extra: r.extra}
	c.byID[r.ID], c.byKey[r.Labels] = e, e
	return nil
}

var numbersInDamage = regexp.MustCompile(`"id"\s*:\s*(\d{1,10})`)
