package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/client"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// Error codes of our own; the CNI spec leaves 100 and up to plugins.
const (
	codeHealthQuery = 100 // CHECK: the agent could not say how the endpoint is
	codeUnhealthy   = 101 // CHECK: the endpoint does not work
	codeDiffers     = 102 // CHECK: the interface is not as ADD left it
)

// undoTime is how long cleaning up after a failure may take.
const undoTime = 10 * time.Second

// versions are the CNI versions that the plugin speaks.
func versions() version.PluginInfo {
	return version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// linker is what the plugin does to interfaces.
type linker interface {
	create(ctx context.Context, n *podNetns, v veth) (veth, error)
	configure(ctx context.Context, n *podNetns, v veth, addrs []netip.Addr) error
	leftover(ctx context.Context, n *podNetns, hostName, podName string) (veth, bool, error)
	remove(ctx context.Context, hostName string, index int) error
}

// plugin is one run of the program.
type plugin struct {
	version string
	links   linker
	stdout  io.Writer
	stderr  io.Writer
}

// Main runs the verb that the environment names and returns the exit code.
func Main(version string) int {
	return (&plugin{version: version, links: kernel{}, stdout: os.Stdout, stderr: os.Stderr}).main()
}

func (p *plugin) main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    p.verb(ctx, "ADD", p.add),
		Del:    p.verb(ctx, "DEL", p.del),
		Check:  p.verb(ctx, "CHECK", p.check),
		Status: p.verb(ctx, "STATUS", p.status),
		GC:     p.verb(ctx, "GC", p.gc),
	}, versions(), "CNI plugin weir-cni "+p.version)
	if err == nil {
		return 0
	}
	if err.Details == "" {
		err.Details = nextStep(err.Code)
	}
	if e := err.Print(); e != nil {
		fmt.Fprintln(p.stderr, "weir-cni:", e)
	}
	return 1
}

// nextStep completes what skel says of a call that it refuses before a verb runs.
func nextStep(code uint) string {
	switch code {
	case types.ErrDecodingFailure, types.ErrInvalidNetworkConfig, types.ErrIncompatibleCNIVersion:
		return "mend the CNI configuration and try again"
	case types.ErrInvalidEnvironmentVariables:
		return "set the CNI_ variables as the CNI specification asks"
	}
	return ""
}

// run is what every verb works with.
type run struct {
	*plugin
	args   *skel.CmdArgs
	conf   *NetConf
	client *client.Client
	log    *slog.Logger
}

// verb reads the configuration, limits the time, logs, and gives errors a CNI code.
func (p *plugin) verb(ctx context.Context, name string, do func(context.Context, *run) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		conf, err := parseConfig(args.StdinData)
		if err != nil {
			return err
		}
		log, closeLog := openLog(conf, p.stderr)
		defer closeLog()
		log = log.With("command", name)
		if args.ContainerID != "" {
			log = log.With("container", args.ContainerID, "interface", args.IfName)
		}
		ctx, cancel := context.WithTimeout(ctx, conf.timeout())
		defer cancel()
		r := &run{plugin: p, args: args, conf: conf, log: log, client: client.New(conf.Socket, p.version, client.WithTimeout(conf.timeout()))}
		defer r.client.Close()
		start := time.Now()
		if err := do(ctx, r); err != nil {
			log.Error("CNI command failed", "error", err, "duration", time.Since(start))
			return cniError(err)
		}
		log.Info("CNI command done", "duration", time.Since(start))
		return nil
	}
}

// stationError says at which station an ADD failed.
type stationError struct {
	station regeneration.Station
	err     error
}

func (e *stationError) Error() string { return "station " + string(e.station) + ": " + e.err.Error() }
func (e *stationError) Unwrap() error { return e.err }

func at(s regeneration.Station, err error) error {
	if err == nil {
		return nil
	}
	return &stationError{s, err}
}

// cniError gives err the code that tells a runtime what to do: 11 to try again,
// 7 and 4 to mend its input, 999 for the rest. The next step goes to details.
func cniError(err error) error {
	var already *types.Error
	if errors.As(err, &already) {
		return already
	}
	code, details, text := types.ErrInternal, "", err.Error()
	var e *v1.Error
	if errors.As(err, &e) {
		details = e.Next
		plain := *e
		plain.Next = ""
		text = plain.Error()
		var s *stationError
		if errors.As(err, &s) {
			text = "station " + string(s.station) + ": " + text
		}
		switch e.Code {
		case v1.CodeUnreachable, v1.CodeStarting, v1.CodeNotReady, v1.CodeTimeout, v1.CodeExhausted:
			code = types.ErrTryAgainLater
		}
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		code = types.ErrTryAgainLater
	}
	return types.NewError(code, text, details)
}

// attachment is the endpoint id of this run's container and interface.
func (r *run) attachment() string { return client.AttachmentID(r.args.ContainerID, r.args.IfName) }

// hostName is the name of this attachment's end on the node.
func (r *run) hostName() string { return link.HostName(r.args.ContainerID, r.args.IfName) }

// owner is whom a lease of this attachment belongs to.
func (r *run) owner() string { return r.args.ContainerID + ":" + r.args.IfName }

// podRef is the pod of CNI_ARGS in the form of the API.
func (a *podArgs) podRef() gen.PodRef {
	return gen.PodRef{Namespace: string(a.K8S_POD_NAMESPACE), Name: string(a.K8S_POD_NAME), UID: string(a.K8S_POD_UID)}
}
