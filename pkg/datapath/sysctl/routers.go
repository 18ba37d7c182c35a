package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ApplyNode gives the node its settings, and first what keeps them from costing
// it something: without accept_ra 2 a link that learned a default route from a
// router's advertisements loses it when forwarding goes on, and learns none any
// more. skip names links that are left alone, those of pods. It returns what
// was not as wanted.
func (c *Changes) ApplyNode(ipv4, ipv6 bool, skip func(link string) bool) ([]Change, error) {
	var own []Change // what links do by themselves
	for _, family := range []struct {
		on   bool
		name string
	}{{ipv4, "ipv4"}, {ipv6, "ipv6"}} {
		if !family.on {
			continue
		}
		dragged, err := c.dragged(family.name)
		if err != nil {
			return nil, err
		}
		own = append(own, dragged...)
	}
	var undone []Change
	if ipv6 {
		hearing, err := c.hearing(skip, own)
		if err == nil {
			undone, err = c.apply(hearing)
		}
		if err != nil {
			return undone, err
		}
	}
	// Undo goes the other way: "all" off, links on again, which costs routes where
	// accept_ra is not 2, then accept_ra.
	for _, o := range own {
		if err := c.pin(o); err != nil {
			return undone, err
		}
	}
	others, err := c.apply(NodeSettings(ipv4, ipv6))
	return append(undone, others...), err
}

// conf is the path of a link's setting.
func conf(family, link, name string) string { return "net/" + family + "/conf/" + link + "/" + name }

// dragged returns the links that forward by themselves, as long as "all" was not
// changed, which changes them too, in both directions.
func (c *Changes) dragged(family string) ([]Change, error) {
	all, err := c.read(conf(family, "all", "forwarding"))
	if err != nil || all != "0" {
		return nil, err
	}
	links, err := c.links(family)
	if err != nil {
		return nil, err
	}
	var out []Change
	for _, link := range append(links, "default") {
		name := conf(family, link, "forwarding")
		now, err := c.read(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // the link is gone
		case err != nil:
			return nil, err
		case now == "1":
			out = append(out, Change{name, now, now})
		}
	}
	return out, nil
}

// hearing is accept_ra 2 for every link that would hear routers if the node did
// not forward; own are those that forward by themselves and do not.
func (c *Changes) hearing(skip func(string) bool, own []Change) ([]Setting, error) {
	all := conf("ipv6", "all", "forwarding")
	on, err := c.read(all)
	if err != nil {
		return nil, err
	}
	if _, ours := c.find(all); on != "0" && !ours {
		return nil, nil // the node forwarded before, and its links heard no routers
	}
	links, err := c.links("ipv6")
	if err != nil {
		return nil, err
	}
	var out []Setting
	for _, link := range links {
		forwards := conf("ipv6", link, "forwarding")
		_, before := c.find(forwards)
		before = before || slices.Contains(own, Change{forwards, "1", "1"})
		if before || link == "lo" || skip(link) {
			continue
		}
		name := conf("ipv6", link, "accept_ra")
		now, err := c.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if now == "1" {
			out = append(out, Setting{name, "2", "a node that forwards hears routers only with 2, and would lose its default route"})
		}
	}
	return out, nil
}

// links are the node's links, as the family has settings for them.
func (c *Changes) links(family string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(c.root, "net", family, "conf"))
	if err != nil {
		return nil, fmt.Errorf("list the kernel settings of links: %w", err)
	}
	var out []string
	for _, e := range entries {
		if name := e.Name(); name != "all" && name != "default" && !strings.HasPrefix(name, ".") {
			out = append(out, name)
		}
	}
	return out, nil
}
