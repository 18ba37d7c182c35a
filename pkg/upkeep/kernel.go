package upkeep

import (
	"context"
	"fmt"
	"sync"

	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/datapath/sysctl"
	"github.com/weirnet/weir/pkg/health"
)

// Settings keeps the kernel's settings; the record of what they were is in file. One
// that is damaged is set aside, and what it held is then not put back.
func Settings(file string, ipv4, ipv6 bool) Step {
	changes := sync.OnceValue(func() *sysctl.Changes {
		c, _ := sysctl.Open(file) // what was set aside is shown with all that was
		return c
	})
	return Step{Name: "Kernel settings",
		Ensure: func(context.Context) (r Result, err error) {
			made, err := changes().ApplyNode(ipv4, ipv6, link.IsHostName)
			for _, c := range made {
				r.Changed = append(r.Changed, fmt.Sprintf("kernel setting %s was %s in place of %s", c.Name, c.Old, c.New))
			}
			return r, err
		},
		Undo: func(context.Context) error {
			_, err := changes().Undo()
			return err
		},
		List: func(context.Context) (out []string, err error) {
			for _, c := range changes().List() {
				out = append(out, fmt.Sprintf("kernel setting %s: back from %s to %s, unless others changed it", c.Name, c.New, c.Old))
			}
			return out, nil
		}}
}

// lostKey is where a default route was: of a family, and for one that a router
// advertised its link.
type lostKey struct {
	v6   bool
	link string
}

// DefaultRoutes tells of default routes that the node had and has no more: the
// last one of a family, and one that a router advertised on a link that is up.
func DefaultRoutes() Step {
	const code = "lost-route"
	had := map[lostKey]route.Default{}
	ensure := func(context.Context) (Result, error) {
		now, err := route.Defaults()
		if err != nil {
			return Result{}, err
		}
		up, err := route.LinksUp()
		if err != nil {
			return Result{}, err
		}
		have := map[lostKey]bool{}
		for _, d := range now {
			keys := []lostKey{{v6: d.V6}}
			if d.Advertised {
				keys = append(keys, lostKey{d.V6, d.Link})
			}
			for _, k := range keys {
				have[k], had[k] = true, d
			}
			have[lostKey{d.V6, d.Link}] = true // by whomever
		}
		var r Result
		for k, d := range had {
			family, flag := "IPv4", "-4"
			if k.v6 {
				family, flag = "IPv6", "-6"
			}
			told := k.link != "" && had[lostKey{v6: k.v6}].Link == k.link && !have[lostKey{v6: k.v6}] // by the line of the family
			if have[k] || told || k.link != "" && !up[k.link] {
				continue
			}
			how := ""
			if d.Advertised {
				how = " that its router advertised"
			}
			r.Warnings = append(r.Warnings, health.Warning{Code: code, Subject: family + " " + d.Link, Breaks: health.BreaksPods,
				Text: fmt.Sprintf("the node has lost its %s default route by %s%s%s", family, d.Link, through(d), how),
				Next: fmt.Sprintf("ip %s route; sysctl net.ipv6.conf.%s.accept_ra", flag, d.Link)})
			if !d.Advertised {
				r.Warnings[len(r.Warnings)-1].Next = "ip " + flag + " route; ip link"
			}
		}
		return r, nil
	}
	return Step{Name: "Default routes", Ensure: ensure, Codes: []string{code}}
}

func through(d route.Default) string {
	if !d.Via.IsValid() {
		return ""
	}
	return " through " + d.Via.String()
}
