// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestFamilies requires each counter of programs in exactly one metric.
func TestFamilies(t *testing.T) {
	var names []string
	for _, f := range families() {
		var values []string
		for name, value := range f.of {
			names, values = append(names, name), append(values, value)
		}
		slices.Sort(values)
		if n := len(values); len(slices.Compact(values)) != n || (f.label == "") != (n == 1 && values[0] == "") {
			t.Errorf("%s: values %v of label %q", f.name, values, f.label)
		}
	}
	var want []string
	for _, m := range flows.Metrics()[1:] {
		want = append(want, m[0])
	}
	slices.Sort(names)
	slices.Sort(want)
	testkit.Check(t, slices.Equal(names, want), "counters %v, want %v", names, want)
}

// TestMetrics reads a datapath with a service, and a datapath that does not exist. Names and help texts follow the
// rules of Prometheus.
func TestMetrics(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	root := testkit.BPFFS(t) + "/mustang"
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(Collector{Root: root, Services: 2})
	n, err := testutil.GatherAndCount(registry)
	testkit.Check(t, n == 1 && err == nil, "without a datapath: %d metrics, %v", n, err)
	d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: root, Sizes: objects.Sizes{Connections: 64,
		Endpoints: 16}}))(t)
	defer d.Close()
	frontend := netip.MustParseAddrPort("10.96.0.1:80")
	_, _, err = d.Services().Put(t.Context(), service.CLI, service.Service{Frontend: frontend, Protocol: service.TCP})
	testkit.Succeed(t, err)
	problems, err := testutil.GatherAndLint(registry)
	testkit.Check(t, err == nil && len(problems) == 0, "%v, %v", problems, err)
	for name, want := range map[string]int{
		"mustang_datapath_dropped_packets_total": len(flows.Drops()) - 1, "mustang_datapath_service_connections": 1,
		"mustang_datapath_connections": 7, "mustang_datapath_program_runs_total": 6,
	} {
		n, err := testutil.GatherAndCount(registry, name)
		testkit.Check(t, n == want && err == nil, "%s: %d, want %d: %v", name, n, want, err)
	}
	testkit.Succeed(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP mustang_datapath_up Whether there is a datapath.
# TYPE mustang_datapath_up gauge
mustang_datapath_up 1
# HELP mustang_datapath_services Addresses, ports and protocols that are served.
# TYPE mustang_datapath_services gauge
mustang_datapath_services 1
# HELP mustang_datapath_connection_slots Slots of the connection table.
# TYPE mustang_datapath_connection_slots gauge
mustang_datapath_connection_slots 64
`), "mustang_datapath_up", "mustang_datapath_services", "mustang_datapath_connection_slots"))
}

// TestBusiest has services with different numbers of connections.
func TestBusiest(t *testing.T) {
	var list []flows.Connection
	for i, n := range []int{1, 3, 2, 2} {
		frontend := netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), uint16(80+i))
		list = append(list, slices.Repeat([]flows.Connection{{Service: frontend, Protocol: service.TCP}}, n)...)
	}
	list = append(list, flows.Connection{})
	services, count := busiest(list)
	const want = "[10.96.0.1:81/tcp 10.96.0.1:82/tcp 10.96.0.1:83/tcp 10.96.0.1:80/tcp]"
	testkit.Check(t, fmt.Sprint(services) == want && count[services[0]] == 3,
		"%v with %v connections, want %s", services, count, want)
}

// BenchmarkCost compares pod shop/a's rate through a service with and without a reader of events, in turns: TCP
// connections for each request, and requests on one connection. The figure is the median ratio of two adjacent turns.
func BenchmarkCost(b *testing.B) {
	for name, kept := range map[string]bool{"tcp_crr": false, "tcp_rr": true} {
		b.Run(name, func(b *testing.B) {
			l := newLab(b, func(t testing.TB) string {
				root, sizes := testkit.BPFFS(t)+"/mustang", objects.Sizes{Connections: 1 << 14, Endpoints: 16}
				testkit.Succeed(t, testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: root, Sizes: sizes}))(t).Close())
				return root
			})
			const frontend = "10.96.0.8:7"
			server := testkit.Echo(b, l.b, "tcp", podB+":0")
			l.serve(service.Service{Protocol: service.TCP}, frontend, server.String())
			var ratios, left []float64
			for b.Loop() {
				off := l.turn(b, frontend, kept)
				on, n := l.watched(b, func() float64 { return l.turn(b, frontend, kept) })
				ratios, left = append(ratios, on/off), append(left, float64(n))
			}
			slices.Sort(ratios)
			slices.Sort(left)
			b.ReportMetric(ratios[len(ratios)/2], "on/off")
			b.ReportMetric(ratios[len(ratios)/4], "quartile")
			b.ReportMetric(left[len(left)/2], "left-out")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// watched calls a function while a reader gets events, and returns how many were left out.
func (l *lab) watched(b *testing.B, do func() float64) (rate float64, left uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- l.d.Flows().Watch(ctx, func(flows.Event) error { return nil }, func(n uint64) error {
			left += n
			return nil
		})
	}()
	time.Sleep(50 * time.Millisecond)
	rate = do()
	cancel()
	testkit.Succeed(b, <-ended)
	return rate, left
}

// turn returns how many requests a second are answered, through connections of their own or one that is kept.
func (l *lab) turn(b *testing.B, frontend string, kept bool) float64 {
	var done int
	var took time.Duration
	err := l.a.Do(func() error {
		var conn net.Conn
		var answers *bufio.Reader
		for begin := time.Now(); took < 300*time.Millisecond; took = time.Since(begin) {
			if conn == nil {
				var err error
				if conn, err = net.Dial("tcp", frontend); err != nil {
					return err
				}
				answers = bufio.NewReader(conn)
			} else if _, err := conn.Write([]byte("\n")); err != nil {
				return err
			}
			if _, err := answers.ReadString('\n'); err != nil { // the server sends the first line itself
				return err
			}
			if done++; !kept {
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
				conn = nil
			}
		}
		if conn != nil {
			return conn.Close()
		}
		return nil
	})
	testkit.Succeed(b, err)
	return float64(done) / took.Seconds()
}
