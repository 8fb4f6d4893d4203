// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// echoing opens a device and answers what is routed to it until the test is over.
func echoing(t *testing.T, offload bool) (ns *nl.Namespace, d *Device, stop func() error) {
	t.Helper()
	ns = testkit.Namespace(t, "echo")
	d = open(t, ns, Options{Name: "left", Addresses: leftAddresses, Offload: offload})
	return ns, d, background(t, func(ctx context.Context) error { return Echo(ctx, d, nil) })
}

// bothOffloads runs a test without and with offload.
func bothOffloads(t *testing.T, test func(t *testing.T, offload bool)) {
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprintf("offload=%t", offload), func(t *testing.T) { test(t, offload) })
	}
}

func TestEchoICMP(t *testing.T) {
	bothOffloads(t, func(t *testing.T, offload bool) {
		ns, _, _ := echoing(t, offload)
		ip(t, ns, "route add 172.16.0.0/12 dev left")
		for _, to := range []string{"10.9.0.2", "10.9.0.200", "172.20.1.1", "fd00:9::2", "fd00:9::abcd:1"} {
			for _, size := range []int{0, 1, 56, 1400, 8000} { // the last in fragments
				if err := ping(ns, to, size); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestEchoUDP(t *testing.T) {
	bothOffloads(t, func(t *testing.T, offload bool) {
		ns, _, _ := echoing(t, offload)
		for _, to := range []string{"10.9.0.2:1", "10.9.0.3:53", "10.9.0.200:65535", "[fd00:9::2]:7", "[fd00:9::abcd:1]:65535"} {
			conn, err := testkit.Dial(ns, "udp", to)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for _, size := range []int{0, 1, 1472, 1473, 8000, 60000} {
				if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Write(payload(size)); err != nil {
					t.Fatal(err)
				}
				buffer := make([]byte, 1<<16)
				n, err := conn.Read(buffer)
				if err != nil || string(buffer[:n]) != string(payload(size)) {
					t.Errorf("%s: sent %d bytes, received %d (%v)", to, size, n, err)
				}
			}
		}
	})
}

func TestEchoWatch(t *testing.T) {
	ns := testkit.Namespace(t, "echo")
	d := open(t, ns, Options{Name: "left", Addresses: leftAddresses})
	var mu sync.Mutex
	var seen []string
	background(t, func(ctx context.Context) error {
		return Echo(ctx, d, func(direction Direction, packet []byte) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, direction.String()+" "+Decode(packet).String())
		})
	})
	if err := ping(ns, "10.9.0.2", 56); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	all := strings.Join(seen, "\n")
	request := "in 84 IPv4 10.9.0.1 > 10.9.0.2 ICMP echo id 4711 seq 56"
	reply := "out 84 IPv4 10.9.0.2 > 10.9.0.1 ICMP echo reply id 4711 seq 56"
	if !strings.Contains(all, request+"\n"+reply) {
		t.Errorf("seen:\n%s\nwant\n%s\n%s", all, request, reply)
	}
}

// TestEchoGarbage has an echo survive packets that are none.
func TestEchoGarbage(t *testing.T) {
	bothOffloads(t, func(t *testing.T, offload bool) {
		ns, d, _ := echoing(t, offload)
		var garbage [][]byte
		for _, test := range decodeTests {
			if test.packet != "" {
				garbage = append(garbage, hexBytes(t, test.packet))
			}
		}
		for size := range 80 {
			garbage = append(garbage, append([]byte{0x45}, payload(size)...), append([]byte{0x60}, payload(size)...))
		}
		inject(t, ns, "left", garbage...)
		if err := ping(ns, "10.9.0.2", 56); err != nil {
			t.Error(err)
		}
		if read := d.Counters().ReadPackets; read < uint64(len(garbage)) {
			t.Errorf("%d packets were read, want %d and more", read, len(garbage))
		}
	})
}

func TestEchoRefusesTAP(t *testing.T) {
	tap := open(t, testkit.Namespace(t, "echo"), Options{Name: "tap", Kind: TAP})
	if err := Echo(context.Background(), tap, nil); err == nil || !strings.Contains(err.Error(), `"tap"`) {
		t.Errorf("error %v, want one that names the device", err)
	}
}

func TestEchoDeviceGone(t *testing.T) {
	ns, d, stop := echoing(t, false)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Echo(context.Background(), d, nil) }()
	if err := ping(ns, "10.9.0.2", 56); err != nil {
		t.Fatal(err)
	}
	ip(t, ns, "link delete left")
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), `"left"`) {
			t.Errorf("error %v, want one that names the device", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal(errors.New("it goes on without its device"))
	}
}
