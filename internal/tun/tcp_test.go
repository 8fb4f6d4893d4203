// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// patient reads with a deadline that moves on with each read.
type patient struct{ net.Conn }

func (p patient) Read(b []byte) (int, error) {
	if err := p.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return 0, err
	}
	return p.Conn.Read(b)
}

// echoTCP sends bytes to an echo, closes its side, and compares what comes back.
func echoTCP(ns *nl.Namespace, to string, data []byte) error {
	conn, err := testkit.Dial(ns, "tcp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		written <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	received, err := io.ReadAll(patient{conn})
	if err != nil {
		_ = conn.Close() // ends the write
	}
	if err := errors.Join(err, <-written); err != nil {
		return fmt.Errorf("tcp to %s: after %d bytes: %w", to, len(received), err)
	}
	if !bytes.Equal(received, data) {
		return fmt.Errorf("tcp to %s: sent %d bytes, received %d others", to, len(data), len(received))
	}
	return nil
}

func TestEchoTCP(t *testing.T) {
	bothOffloads(t, func(t *testing.T, offload bool) {
		ns, d, _ := echoing(t, offload)
		ip(t, ns, "route add 172.16.0.0/12 dev left")
		for to, most := range map[string]int{"10.9.0.2:1": 10 << 20, "172.20.1.1:65535": 1 << 20, "[fd00:9::abcd:1]:80": 1 << 20} {
			for _, size := range []int{0, 1, most} {
				if err := echoTCP(ns, to, payload(size)); err != nil {
					t.Error(err)
				}
			}
		}
		if counters := d.Counters(); counters.Dropped > 0 {
			t.Errorf("%d packets were dropped", counters.Dropped)
		}
		device, err := ns.Device("left")
		if err != nil {
			t.Fatal(err)
		}
		// With offload both the kernel and the library hand over large ones.
		counters := d.Counters()
		if whole := device.TxPackets*2 < counters.ReadPackets; whole != offload {
			t.Errorf("%d packets read on a wire, %d as the kernel counts", counters.ReadPackets, device.TxPackets)
		}
	})
}

// TestEchoTCPMany has many connections open at once, to one address and port.
func TestEchoTCPMany(t *testing.T) {
	ns, _, _ := echoing(t, true)
	var group errgroup.Group
	for i := range 100 {
		group.Go(func() error { return echoTCP(ns, "10.9.0.2:80", payload(1000*i)) })
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// TestEchoTCPEnds ends an echo that has connections open.
func TestEchoTCPEnds(t *testing.T) {
	ns, _, stop := echoing(t, false)
	conn, err := testkit.Dial(ns, "tcp", "10.9.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestEchoTCPHalfOpen ends an echo with a connection that is not open yet: the
// client's address is nobody's.
func TestEchoTCPHalfOpen(t *testing.T) {
	ns, d, stop := echoing(t, false)
	packet := hexBytes(t, "4500003c 00004000 40060000 0a090063 0a090002"+syn)
	sum(packet)
	inject(t, ns, "left", packet)
	testkit.Eventually(t, 5*time.Second, func() error {
		if d.Counters().WrittenPackets == 0 {
			return errors.New("no answer")
		}
		return nil
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}
