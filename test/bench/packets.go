package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirnet/weir/pkg/lab"
)

// bed is a pair of pods with a data plane between them.
type bed struct {
	name   string
	client lab.Netns
	server netip.Addr
}

// burst is one of pp's modes and the figure of it that is reported.
type burst struct {
	mode, port string // pp's mode and the port of the servers to use
	key, what  string // name of the figure in pp's output, and for people
	aim        float64
	atLeast    bool
}

// bursts lists what is measured. Round trips share core 0 with their server,
// which is the pure cost of the path and the most repeatable; datagrams go to
// a server on core 1, or nobody would read them.
func bursts() []burst {
	return []burst{
		{"rr", sameCore, "rr_p50us", "RR p50", 1.05, false},
		{"crr", sameCore, "crr_p50us", "CRR p50", 1.06, false},
		{"udp", otherCore, "udp64_rxpps", "UDP 64 B pps", 0.92, true},
	}
}

// Ports of the servers on core 0 and on core 1.
const (
	sameCore  = "6000"
	otherCore = "5000"
)

// measurePackets runs every burst on all beds in turn, the order reversed in
// every second round, and reports the median of same-round ratios to the first
// bed.
func measurePackets(ctx context.Context, o options, r *report) (err error) {
	beds, end, err := makeBeds(ctx, o, r)
	defer func() { err = errors.Join(err, end.run()) }()
	if err != nil {
		return err
	}
	samples := map[string][]float64{} // by bed and figure, one value a round
	for round := range o.rounds {
		for _, b := range bursts() {
			for _, bed := range beds {
				v, err := o.burst(ctx, b, bed)
				if err != nil {
					return fmt.Errorf("%s %s, round %d: %w", bed.name, b.mode, round, err)
				}
				samples[bed.name+b.key] = append(samples[bed.name+b.key], v)
			}
		}
		slices.Reverse(beds)
		fmt.Fprintf(os.Stderr, "  round %d of %d\r", round+1, o.rounds)
	}
	fmt.Fprintln(os.Stderr)
	for _, b := range bursts() {
		base := samples[baseline+b.key]
		r.add(line{What: baseline + " " + b.what, Value: quantile(base, 0.5), Note: spread(base)})
		for _, name := range []string{"full_peer", "weir"} {
			l := line{What: name + " " + b.what, Value: quantile(ratios(samples[name+b.key], base), 0.5), Unit: "x", Baseline: baseline,
				Note: spread(ratios(samples[name+b.key], base))}
			if name == "weir" {
				l.Aim, l.AtLeast = b.aim, b.atLeast
			}
			r.add(l)
		}
	}
	return nil
}

// burst runs pp once and returns its figure.
func (o options) burst(ctx context.Context, b burst, on bed) (v float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(o.seconds*float64(time.Second))+20*time.Second)
	defer cancel()
	cmd := o.urgent(ctx, o.dir+"/pp", b.mode, on.server.String(), b.port, "0", fmt.Sprint(o.seconds))
	var out []byte
	err = on.client.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	for _, word := range strings.Fields(string(out)) {
		if text, ok := strings.CutPrefix(word, b.key+"="); ok {
			v, err = strconv.ParseFloat(text, 64)
		}
	}
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("pp printed no %s: %s", b.key, out)
	}
	return v, nil
}

// urgent is a command that other processes of the machine do not interrupt,
// where chrt is there.
func (o options) urgent(ctx context.Context, name string, args ...string) *exec.Cmd {
	if o.chrt != "" {
		return exec.CommandContext(ctx, o.chrt, append([]string{"-f", "1", name}, args...)...)
	}
	return exec.CommandContext(ctx, name, args...)
}

// serve starts pp's servers in a namespace, on both cores; stop ends them.
func serve(o options, ns lab.Netns) (stop func() error, err error) {
	var started []*exec.Cmd
	stop = func() (err error) {
		for _, cmd := range started {
			err = errors.Join(err, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
			cmd.Wait() // it was killed, as it should be
		}
		return err
	}
	for core, port := range []string{sameCore, otherCore} {
		cmd := o.urgent(context.Background(), o.dir+"/pp", "server", "0.0.0.0", port, strconv.Itoa(core))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := ns.Do(cmd.Start); err != nil {
			return nil, errors.Join(fmt.Errorf("starting pp's servers: %w", err), stop())
		}
		started = append(started, cmd)
	}
	return stop, nil
}

// baseline is the bed that the others are compared with.
const baseline = "min_peer"

// teardown is what must be done at the end, in reverse order.
type teardown []func() error

func (t teardown) run() (err error) {
	for _, f := range slices.Backward(t) {
		err = errors.Join(err, f())
	}
	return err
}

// makeBeds builds two pairs with floor programs and a Weir pair, and reports
// what is known of the Weir pair without traffic. The first bed is the
// baseline. The teardown is valid with an error too.
func makeBeds(ctx context.Context, o options, r *report) (beds []bed, end teardown, err error) {
	var servers []lab.Netns
	for _, program := range []string{baseline, "full_peer"} {
		f, err := newFloor(filepath.Join(o.state, program), filepath.Join(o.dir, "redir.o"), program)
		if err != nil {
			return nil, end, err
		}
		end = append(end, f.remove)
		beds, servers = append(beds, bed{program, f.a, floorB}), append(servers, f.b)
	}
	n, err := newNode(ctx, o, "packets", "--ipv4-pool=10.99.0.0/16", "--ipv6-pool=fd00:99::/112")
	if err != nil {
		return nil, end, err
	}
	end = append(end, n.close)
	var pods [2]*lab.AttachedPod
	for i, name := range []string{"client", "server"} {
		if pods[i], err = n.AddPod(ctx, lab.Pod{Namespace: "bench", Name: name}); err != nil {
			return nil, end, err
		}
	}
	beds, servers = append(beds, bed{"weir", pods[0].Netns, pods[1].Addresses[0]}), append(servers, pods[1].Netns)
	for _, ns := range servers {
		stop, err := serve(o, ns)
		if err != nil {
			return nil, end, err
		}
		end = append(end, stop)
	}
	time.Sleep(300 * time.Millisecond) // until the servers listen
	if err := n.measureVerified(ctx, r); err != nil {
		return nil, end, err
	}
	return beds, end, n.measureMemory(ctx, r)
}
