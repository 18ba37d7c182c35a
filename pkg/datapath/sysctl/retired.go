package sysctl

import (
	"errors"
	"io/fs"
	"slices"
)

// retired are settings that former builds changed and that Weir needs no more.
var retired = []string{allRPFilter}

// putBackRetired gives retired settings of the record the values that they had
// before Weir, unless somebody else has changed them since, and forgets them. c.mu
// is held.
func (c *Changes) putBackRetired() error {
	keep := slices.Clone(c.made)
	for _, m := range c.made {
		if !slices.Contains(retired, m.Name) {
			continue
		}
		now, err := c.read(m.Name)
		if err == nil && now == m.New {
			err = c.write(m.Name, m.Old)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		keep = slices.DeleteFunc(keep, func(k Change) bool { return k.Name == m.Name })
	}
	if len(keep) == len(c.made) {
		return nil
	}
	return c.save(keep)
}
