package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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
	// use makes the bed's data plane the one in force; nil: it always is.
	use func() error
}

// figures of a burst, by pp's names.
type figures map[string]float64

// bursts are pp's modes with the port of the server to use. Round trips share
// core 0 with their server, which is the pure cost of the path and the most
// repeatable; datagrams go to a server on core 1, or nobody would read them.
var bursts = [][2]string{{"rr", "6000"}, {"crr", "6000"}, {"udp", "5000"}}

// measurePackets runs all beds in turn, the order reversed in every second
// round, and reports the median of same-round ratios to min_peer.
func measurePackets(ctx context.Context, o options, r *report) (err error) {
	beds, stop, err := makeBeds(ctx, o, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	samples := map[string][]figures{}
	for round := range o.rounds {
		for i := range beds {
			b := beds[i]
			if round%2 == 1 {
				b = beds[len(beds)-1-i]
			}
			f, err := measureBed(ctx, o, b)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", b.name, round, err)
			}
			fmt.Fprintf(os.Stderr, "  round %d %s: RR %.2f us, CRR %.2f us, UDP %.0f/s\n", round, b.name, f["rr_p50us"], f["crr_p50us"], f["udp64_rxpps"])
			samples[b.name] = append(samples[b.name], f)
		}
	}
	for _, b := range beds[1:] {
		for _, k := range []struct {
			key, what string
			aim       float64
			atLeast   bool
		}{
			{"rr_p50us", "RR p50", 1.05, false}, {"crr_p50us", "CRR p50", 1.06, false}, {"udp64_rxpps", "UDP 64 B pps", 0.92, true},
		} {
			var ratios []float64
			for i, f := range samples[b.name] {
				ratios = append(ratios, f[k.key]/samples[beds[0].name][i][k.key])
			}
			l := line{What: b.name + " " + k.what, Value: median(ratios), Unit: "x", Baseline: beds[0].name,
				Note: fmt.Sprintf("%d rounds, %.4g to %.4g", len(ratios), quantile(ratios, 0), quantile(ratios, 1))}
			if b.name == "weir" {
				l.Aim, l.AtLeast = k.aim, k.atLeast
			}
			r.add(l)
		}
	}
	return nil
}

func measureBed(ctx context.Context, o options, b bed) (figures, error) {
	if b.use != nil {
		if err := b.use(); err != nil {
			return nil, err
		}
	}
	all := figures{}
	for _, mode := range bursts {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(o.seconds*float64(time.Second))+20*time.Second)
		defer cancel()
		var out []byte
		err := b.client.Do(func() (err error) {
			cmd := exec.CommandContext(ctx, "chrt", "-f", "1", o.dir+"/pp", mode[0], b.server.String(), mode[1], "0", fmt.Sprint(o.seconds))
			out, err = cmd.Output()
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("pp %s: %w", mode[0], err)
		}
		for _, word := range strings.Fields(string(out)) {
			k, v, _ := strings.Cut(word, "=")
			if all[k], err = strconv.ParseFloat(v, 64); err != nil {
				return nil, fmt.Errorf("pp %s printed %q", mode[0], word)
			}
		}
	}
	return all, nil
}

// serve starts pp's servers on a core in a namespace; stop ends them.
func serve(o options, ns lab.Netns, port, core string) (stop func() error, err error) {
	cmd := exec.Command("chrt", "-f", "1", o.dir+"/pp", "server", "0.0.0.0", port, core)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := ns.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("starting pp's servers: %w", err)
	}
	return func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait() // it was killed, as it should be
		return err
	}, nil
}

// makeBeds builds the floor pair and the Weir pair. The first bed is the baseline.
func makeBeds(ctx context.Context, o options, r *report) (beds []bed, stop func() error, err error) {
	var stops []func() error
	stop = func() (err error) {
		for i := len(stops) - 1; i >= 0; i-- {
			err = errors.Join(err, stops[i]())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	f, err := newFloor(filepath.Join(o.dir, "floor"), filepath.Join(o.dir, "redir.o"))
	if err != nil {
		return nil, nil, err
	}
	stops = append(stops, f.remove)
	for _, program := range []string{"min_peer", "full_peer"} {
		beds = append(beds, bed{program, f.a, floorB, func() error { return f.attach(program) }})
	}
	n, err := newNode(ctx, o, "packets")
	if err != nil {
		return nil, nil, err
	}
	stops = append(stops, n.close)
	var pods [2]*lab.AttachedPod
	for i, name := range []string{"client", "server"} {
		if pods[i], err = n.AddPod(ctx, lab.Pod{Namespace: "bench", Name: name}); err != nil {
			return nil, nil, err
		}
	}
	beds = append(beds, bed{"weir", pods[0].Netns, pods[1].Addresses[0], nil})
	for _, ns := range []lab.Netns{f.b, pods[1].Netns} {
		for _, s := range [][2]string{{"6000", "0"}, {"5000", "1"}} {
			end, err := serve(o, ns, s[0], s[1])
			if err != nil {
				return nil, nil, err
			}
			stops = append(stops, end)
		}
	}
	time.Sleep(300 * time.Millisecond) // until the servers listen
	return beds, stop, errors.Join(measureVerified(n.Lab, r), n.measureMemory(ctx, r))
}
