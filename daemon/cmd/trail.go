package cmd

import (
	"log/slog"

	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/filesource"
)

// fileChanges tells the trail what files of the source changed.
func fileChanges(log *slog.Logger) func(filesource.Change) {
	trail := api.NewTrail(log)
	return func(c filesource.Change) {
		what := c.File
		if c.Start {
			what = "read at the start"
		}
		if len(c.Put) > 0 {
			what += ": put " + api.Names(c.Put)
		}
		if len(c.Gone) > 0 {
			what += ": taken away " + api.Names(c.Gone)
		}
		trail.Tell(api.Change{Who: api.ByFile, Action: "source", What: what, Revision: c.Revision})
	}
}
