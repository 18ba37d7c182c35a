package cmd

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/endpointmanager"
	"github.com/weirnet/weir/pkg/health"
)

// programsRefused is the code of the warnings that programs of before run on, or none.
const programsRefused = "programs-refused"

// Waits between attempts to initialise the data plane.
const (
	initMin = time.Second
	initMax = time.Minute
)

// startDatapath initialises the data plane. Where that fails and programs of an earlier
// agent run, the agent goes on, so that they get their policies, and tries again.
func (a *agent) startDatapath(ctx, run context.Context) error {
	err := a.datapath.Initialize(ctx)
	if err == nil {
		return nil
	}
	runs, listErr := programsRun()
	if listErr != nil {
		a.log.Warn("Cannot tell whether programs of an earlier agent run", "error", listErr)
	}
	if !runs {
		return err
	}
	a.tellDatapath(err)
	a.loop(run, "data plane", a.initializeAgain)
	return nil
}

// initializeAgain returns once the data plane is initialised; the endpoints are built then.
func (a *agent) initializeAgain(ctx context.Context) error {
	for wait := initMin; ; wait = min(2*wait, initMax) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		err := a.datapath.Initialize(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			break
		}
		a.tellDatapath(err)
	}
	a.warnings.Clear(programsRefused, "")
	a.log.Info("The data plane is initialised")
	for _, e := range a.endpoints.Manager.List() {
		e.Retry(regeneration.LevelLoad, "the data plane is initialised")
	}
	return nil
}

func (a *agent) tellDatapath(err error) {
	a.log.Error("The data plane is not initialised; programs of the last agent go on with the policies of now", "error", err)
	a.warnings.Set(health.Warning{
		Code: programsRefused, Breaks: health.BreaksPods, Failing: true,
		Text: fmt.Sprintf("no program can be loaded; those of the last agent go on, with the policies of now, and no pod can be added: %v", err),
		Next: "see the cause; it is tried again by itself",
	})
}

// programsRun reports whether programs of ours run on a pod's link.
func programsRun() (bool, error) {
	hosts, err := link.List()
	if err != nil {
		return false, err
	}
	for _, h := range hosts {
		a, err := attach.Query(h.Index)
		if err != nil {
			return false, err
		}
		if a != (attach.Attached{}) {
			return true, nil
		}
	}
	return false, nil
}

// programWarnings keeps a warning for each endpoint on which programs of before run.
func programWarnings(warnings *health.Registry) func(endpointmanager.Event) {
	return func(e endpointmanager.Event) {
		subject := "endpoint " + strconv.Itoa(int(e.New.ID))
		switch {
		case e.New.Refused != "" && e.New.State.Alive():
			warnings.Set(formerPrograms(subject, e.New))
		case e.Old != nil && e.Old.Refused != "":
			warnings.Clear(programsRefused, subject)
		}
	}
}

func formerPrograms(subject string, r *endpoint.Row) health.Warning {
	whose := "those of the last agent run"
	if r.Built() {
		whose = fmt.Sprintf("those for identity %s run", r.Realized.Identity)
	}
	return health.Warning{
		Code: programsRefused, Subject: subject, Breaks: health.BreaksNothing,
		Text: fmt.Sprintf("%s (%s): its programs are not loaded, %s, with the policy of now: %s", subject, r.Pod, whose, r.Refused),
		Next: "weir endpoint log " + strconv.Itoa(int(r.ID)),
	}
}
