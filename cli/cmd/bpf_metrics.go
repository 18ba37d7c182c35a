package cmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/maps/metricsmap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// metricsLine is a counter for people and programs.
type metricsLine struct {
	Reason    string `json:"reason"`
	Code      uint8  `json:"code"`
	Direction string `json:"direction"`
	Packets   uint64 `json:"packets"`
	Bytes     uint64 `json:"bytes"`
	Text      string `json:"text"` // what happened and what to try
}

func (a *app) bpfMetrics(_ *cobra.Command, root bpf.Root) error {
	m, err := metricsmap.Open(root)
	if err != nil {
		return err
	}
	defer m.Close()
	counts, err := m.Dump()
	if err != nil {
		return err
	}
	return a.showMetrics(counts)
}

func (a *app) showMetrics(counts []metricsmap.Count) error {
	lines := []metricsLine{}
	for _, c := range counts {
		r := drop.Reason(c.Reason)
		lines = append(lines, metricsLine{r.String(), c.Reason, policytypes.Direction(c.Direction).String(), c.Packets, c.Bytes, r.Explain()})
	}
	return a.show(lines, func() error {
		var cells [][]string
		for _, l := range lines {
			cells = append(cells, []string{l.Reason, l.Direction, fmt.Sprint(l.Packets), fmt.Sprint(l.Bytes)})
		}
		return a.rows("REASON DIRECTION PACKETS BYTES", cells)
	})
}
