// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

const (
	benchTurn   = 20 * time.Millisecond
	benchRounds = 100 // of four turns: with programs, without, without, with
)

// BenchmarkRemotePods compares the programs' way between pods of two nodes with that of the kernel, and the programs'
// tunnel with their native way, in turns of one run. Its figures are the ratio of rates with the half-width of its 95 %
// confidence interval.
func BenchmarkRemotePods(b *testing.B) {
	native := newOverlay(b, way{routing: Native})
	for _, w := range []way{{routing: VXLAN}, {routing: VXLAN, outer6: true}, {routing: Native}} {
		o := native
		if w.routing == VXLAN {
			o = newOverlay(b, w)
		}
		rows := make([][]datapath.Remote, len(o.datapaths))
		for i, d := range o.datapaths {
			rows[i] = testkit.Must(d.Remotes().List())(b)
		}
		set := func(on bool) {
			for i, d := range o.datapaths {
				ways := rows[i]
				if !on {
					ways = nil
				}
				testkit.Must(d.Remotes().Apply(b.Context(), ways))(b)
			}
		}
		for family, name := range []string{"ipv4", "ipv6"} {
			plain := native.workloads(family)
			for i, workload := range o.workloads(family) {
				run := func(against string, turn func(on bool) float64) {
					b.Run(w.String()+"/"+name+"/"+workload.name+against, func(b *testing.B) {
						for range b.N {
							ratio, half := compare(turn)
							b.ReportMetric(ratio, "ratio")
							b.ReportMetric(half, "±")
						}
					})
				}
				run("/kernel", func(on bool) float64 {
					set(on)
					return workload.load(time.Now().Add(benchTurn))
				})
				set(true)
				if w.routing == VXLAN {
					run("/native", func(on bool) float64 {
						if !on {
							return plain[i].load(time.Now().Add(benchTurn))
						}
						return workload.load(time.Now().Add(benchTurn))
					})
				}
			}
		}
	}
}

// workload is a load; load returns its rate until a time.
type workload struct {
	name string
	load func(until time.Time) float64
}

func (o *overlay) workloads(family int) []workload {
	server := o.listen(family)
	return []workload{{"request", o.requests(server)}, {"connect", o.connects(server)}, {"stream", o.stream(server)}}
}

// compare takes turns, and returns the geometric mean of the ratios on/off of rounds.
func compare(turn func(on bool) float64) (ratio, half float64) {
	turn(true)
	turn(false)
	var logs []float64
	for range benchRounds {
		a, b, c, d := turn(true), turn(false), turn(false), turn(true)
		logs = append(logs, math.Log((a+d)/(b+c)))
	}
	slices.Sort(logs)
	logs = logs[len(logs)/20 : len(logs)-len(logs)/20] // another program's turns
	mean, squares := 0.0, 0.0
	for _, l := range logs {
		mean += l / float64(len(logs))
	}
	for _, l := range logs {
		squares += (l - mean) * (l - mean)
	}
	ratio = math.Exp(mean)
	return ratio, ratio * 1.96 * math.Sqrt(squares) / float64(len(logs))
}

// listen starts a server in the second pod that returns a byte for each one, and reads streams: a connection begins
// with a byte that says which.
func (o *overlay) listen(family int) string {
	o.t.Helper()
	var l net.Listener
	o.must(o.nodes[1].pod.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(o.nodes[1].pods[family], 0).String())
		return err
	}))
	o.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buffer := make([]byte, 1<<18)
				if _, err := io.ReadFull(c, buffer[:1]); err == nil && buffer[0] == 's' {
					_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, buffer)
					return
				}
				for _, err := c.Write(buffer[:1]); err == nil; _, err = c.Write(buffer[:1]) {
					if _, err := c.Read(buffer[:1]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func (o *overlay) dial(server string, kind byte) net.Conn {
	c := testkit.Must(testkit.Dial(o.nodes[0].pod, "tcp", server))(o.t)
	testkit.Must(c.Write([]byte{kind}))(o.t)
	return c
}

// rate calls do until then, and returns the rate in seconds of what it counts.
func rate(until time.Time, do func() float64) float64 {
	begin, n := time.Now(), 0.0
	for time.Now().Before(until) {
		n += do()
	}
	return n / time.Since(begin).Seconds()
}

func (o *overlay) requests(server string) func(time.Time) float64 {
	c := o.dial(server, 'r')
	o.t.Cleanup(func() { _ = c.Close() })
	b := make([]byte, 1)
	testkit.Must(c.Read(b))(o.t)
	return func(until time.Time) float64 {
		return rate(until, func() float64 {
			testkit.Must(c.Write(b))(o.t)
			testkit.Must(c.Read(b))(o.t)
			return 1
		})
	}
}

func (o *overlay) connects(server string) func(time.Time) float64 {
	return func(until time.Time) float64 {
		return rate(until, func() float64 {
			c := o.dial(server, 'r')
			testkit.Must(c.Read(make([]byte, 1)))(o.t)
			_ = c.(*net.TCPConn).SetLinger(0) // the client's port is free at once
			_ = c.Close()
			return 1
		})
	}
}

func (o *overlay) stream(server string) func(time.Time) float64 {
	c := o.dial(server, 's')
	o.t.Cleanup(func() { _ = c.Close() })
	buffer := make([]byte, 1<<17)
	return func(until time.Time) float64 {
		return rate(until, func() float64 { return float64(testkit.Must(c.Write(buffer))(o.t)) })
	}
}

// BenchmarkApply applies a plan for 999 other nodes of a segment that the kernel already has.
func BenchmarkApply(b *testing.B) {
	for _, routing := range []Routing{Native, VXLAN} {
		b.Run(string(routing), func(b *testing.B) {
			host, _ := testkit.VethPair(b)
			testkit.Succeed(b, rtnl.In(host).Configure("left",
				rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix("10.197.1.0/16")}}))
			node := func(i int) Node {
				high, low := byte(i>>8), byte(i)
				return Node{Name: fmt.Sprint("node-", i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 197, 1 + high, low})},
					Ranges: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 + high, low, 0}), 24)}}
			}
			var others []Node
			for i := range 999 {
				others = append(others, node(i+1))
			}
			n := New(Options{Host: host, Routing: routing, Masquerade: true, Remotes: func([]Remote) error { return nil }})
			testkit.Succeed(b, n.Apply(node(0), others))
			for b.Loop() {
				testkit.Succeed(b, n.Apply(node(0), others))
			}
		})
	}
}
