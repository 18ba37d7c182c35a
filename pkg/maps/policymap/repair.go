package policymap

import (
	"errors"
	"fmt"
	"slices"
)

// Repair compares every policy in the kernel with what was written and mends what
// differs: lines that somebody else removed, added or changed. It returns how many
// lines that were. A policy whose contents are not known, because it was adopted
// or its last delta failed, is left to the next Update.
func (s *Slots) Repair() (mended int, err error) {
	var numbers []uint32
	_ = s.lock.Do(func() error {
		for n := range s.used {
			numbers = append(numbers, n)
		}
		return nil
	})
	slices.Sort(numbers)
	var errs []error
	for _, n := range numbers { // one at a time, so that no endpoint waits for all
		lines, err := s.repair(n)
		if err != nil {
			err = fmt.Errorf("mend policy slot %d: %w", n, err)
		}
		mended, errs = mended+lines, append(errs, err)
	}
	return mended, errors.Join(errs...)
}

func (s *Slots) repair(number uint32) (mended int, err error) {
	err = s.lock.Do(func() error {
		u := s.used[number]
		if s.closed || u == nil || !u.known {
			return nil
		}
		return s.write(number, func(c contents) error {
			have := make([]record, 0, len(u.records))
			if err := c.each(func(k key, e entry) { have = append(have, record{k, e}) }); err != nil {
				return err
			}
			have = sorted(have)
			if same(have, u.records) {
				return nil
			}
			d := difference(have, u.records)
			d.adds = append(d.adds, changed(have, u.records)...)
			sortForAdding(d.adds)
			sortForDeleting(d.deletes)
			if err := c.update(split(d.adds)); err != nil {
				return err
			}
			keys, _ := split(d.deletes)
			if err := c.delete(keys); err != nil {
				return err
			}
			mended = len(d.adds) + len(d.deletes)
			return nil
		})
	})
	return mended, err
}

// changed are the records of want that have says otherwise, both in the order of
// compareKeys.
func changed(have, want []record) (out []record) {
	for _, r := range want {
		if i, found := slices.BinarySearchFunc(have, r, compareKeys); found && !have[i].entry.says(r.entry) {
			out = append(out, r)
		}
	}
	return out
}
