package bpf_test

import (
	"testing"

	"github.com/weirnet/weir/pkg/testutils"
)

// BenchmarkEstablished runs packets of established flows through the entry and
// the body; ns/packet is the kernel's own measurement, loop included.
func BenchmarkEstablished(b *testing.B) {
	testutils.Kernel(b, testutils.Tool("clang-19"))
	n, from, to := openPair(b)
	for _, c := range []struct {
		name string
		p    packet
	}{
		{"IPv4 to a pod", between(from, from.v4, to.v4)},
		{"IPv6 to a pod", between(from, from.v6, to.v6)},
		{"IPv4 to the node", between(from, from.v4, outside(v4))},
		{"IPv6 to the node", between(from, from.v6, outside(v6))},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.p.dstMAC, c.p.ttl = [6]byte{}, 255 // lo's address; a run takes off one hop
			frame := c.p.tcp(40000, 80, "A").frame(b)
			n.from(from, frame)
			const repeat = 250
			var total float64
			for b.Loop() {
				_, each, err := from.from.Benchmark(frame, repeat, nil)
				if err != nil {
					b.Fatal(err)
				}
				total += float64(each.Nanoseconds())
			}
			b.ReportMetric(total/float64(b.N), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}
