package pinned

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/eventsmap"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/metricsmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
)

// formers are the layouts that earlier versions gave the maps, by the names of the maps.
// Whoever changes a struct in bpf/lib/types.h adds the one from before here. For
// weir_policy it is that of the maps in the slots.
func formers() map[string][]bpf.Layout { return map[string][]bpf.Layout{} }

// convert puts maps of the layouts of now in the place of others.
func convert(root bpf.Root, s Sizes, formers map[string][]bpf.Layout) (all []bpf.Replaced, err error) {
	note := func(r *bpf.Replaced, e error) {
		if err = errors.Join(err, e); r != nil {
			all = append(all, *r)
		}
	}
	// Words and policies are replaced together, so that programs of before go on with
	// the policies that their words name, whatever becomes of the slots of now.
	config := lxcmap.ConfigSpec()
	words, e := bpf.Differs(config, root.Map(config.Name))
	note(nil, e)
	policies, e := policymap.Convert(root, s.Policies.Slots, formers[policymap.Name], words)
	note(policies, e)
	if words || policies != nil {
		note(replaceConfig(root, config, formers[config.Name], policies))
	}
	for _, spec := range []*ebpf.MapSpec{
		lxcmap.Spec(), ipcachemap.Spec(), ctmap.Spec(ctmap.IPv4), ctmap.Spec(ctmap.IPv6), ctmap.FragmentsSpec(), metricsmap.Spec(), eventsmap.Spec(),
	} {
		r, e := bpf.ConvertLayout(spec, root.Map(spec.Name), formers[spec.Name])
		note(r, e)
		if table, flows := map[string]string{ctmap.Name4: ctmap.Former4, ctmap.Name6: ctmap.Former6}[spec.Name]; flows && r != nil {
			if e := os.Remove(root.Map(table)); e != nil && !errors.Is(e, os.ErrNotExist) {
				err = errors.Join(err, fmt.Errorf("remove the pin of %s, which takes maps of the former layout: %w", table, e))
			}
		}
	}
	return all, err
}

// replaceConfig gives the words another array although their layout may be the same.
// Words that name policies which were not converted are lost.
func replaceConfig(root bpf.Root, spec *ebpf.MapSpec, layouts []bpf.Layout, policies *bpf.Replaced) (*bpf.Replaced, error) {
	same := bpf.Layout{KeySize: spec.KeySize, ValueSize: spec.ValueSize, Convert: func(k, v []byte) ([]byte, []byte) { return k, v }}
	layouts = append([]bpf.Layout{same}, layouts...)
	return bpf.ReplaceLayout(spec, root.Map(spec.Name), func(*ebpf.Map) []string {
		return []string{"it, or the map of the policies that it names, is of another layout"}
	},
		func(former, m *ebpf.Map) (known bool, entries int, err error) {
			if policies != nil && policies.Aside != "" {
				return false, 0, nil
			}
			for i := range layouts {
				if layouts[i].KeySize == former.KeySize() && layouts[i].ValueSize == former.ValueSize() {
					entries, err = layouts[i].Fill(former, m)
					return true, entries, err
				}
			}
			return false, 0, nil
		})
}

// raiseRevision lets no policy have a revision that a flow was allowed under already,
// which matters where the words were lost.
func (m *Maps) raiseRevision() error {
	if !m.Config.Empty() {
		return nil
	}
	for _, c := range []*ctmap.Map{m.CT4, m.CT6} {
		newest, err := c.NewestRevision()
		if err != nil {
			return err
		}
		m.Config.RaiseRevision(newest)
	}
	return nil
}
