// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"mustang/internal/datapath/flows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// BenchmarkCost compares pod shop/a's rate through a service with and without a reader of events, in turns: TCP
// connections for each request, and requests on one connection. The figure is the median ratio of two adjacent turns.
func BenchmarkCost(b *testing.B) {
	for name, kept := range map[string]bool{"tcp_crr": false, "tcp_rr": true} {
		b.Run(name, func(b *testing.B) {
			l := newLab(b, 1<<14)
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
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
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
	if err != nil {
		b.Fatal(err)
	}
	return float64(done) / took.Seconds()
}
