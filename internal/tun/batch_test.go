// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// lines collects the packets of Each as text.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) read(packet []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, FormatPacket(packet))
	return nil
}

func (l *lines) matching(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// inject sends packets of any bytes out of a device, past the IP stack.
func inject(t *testing.T, ns *netns.Namespace, name string, packets ...[]byte) {
	t.Helper()
	device := testkit.Must(rtnl.In(ns).Device(name))(t)
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrLinklayer{Ifindex: device.Index, Protocol: 0x0008 /* IPv4 */}
		for _, packet := range packets {
			if err := unix.Sendto(fd, packet, 0, to); err != nil {
				return err
			}
		}
		return nil
	})
	testkit.Succeed(t, err)
}

// TestEach reads sent packets, malformed ones too.
func TestEach(t *testing.T) {
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprintf("offload=%t", offload), func(t *testing.T) {
			ns := testkit.Namespace(t, "each")
			d := open(t, ns, Options{Name: "left", Addresses: leftAddresses, Offload: offload})
			var seen lines
			background(t, func(ctx context.Context) error { return d.Each(ctx, seen.read) })
			for _, address := range []string{"10.9.0.77:53", "[fd00:9::77]:53"} {
				conn := testkit.Must(testkit.Dial(ns, "udp", address))(t)
				testkit.Must(conn.Write(payload(100)))(t)
				_ = conn.Close()
				family, size := "IPv4", 128
				if strings.Contains(address, "[") {
					family, size = "IPv6", 148
				}
				want := fmt.Sprintf("%d %s %s > %s UDP", size, family, conn.LocalAddr(), address)
				eventually(t, &seen, want)
			}
			for _, garbage := range []string{"\x00", "\x45", "\x60 short", "\xff\xff\xff", "\x45" + strings.Repeat("\xff", 50)} {
				inject(t, ns, "left", []byte(garbage))
				eventually(t, &seen, FormatPacket([]byte(garbage)))
			}
		})
	}
}

func eventually(t *testing.T, seen *lines, want string) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, func() error {
		for _, line := range seen.matching(want) {
			if line == want {
				return nil
			}
		}
		return fmt.Errorf("no line %q in %q", want, seen.matching(""))
	})
}

func TestEachEnds(t *testing.T) {
	ns := testkit.Namespace(t, "each")
	stop := errors.New("enough")
	d := open(t, ns, Options{Name: "left", Addresses: leftAddresses})
	inject(t, ns, "left", []byte("x"))
	err := d.Each(context.Background(), func([]byte) error { return stop })
	testkit.Check(t, errors.Is(err, stop), "error %v, want that of the function", err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = d.Each(ctx, func([]byte) error { return nil })
	testkit.Check(t, err == nil, "a context that ended: %v", err)
	tap := open(t, ns, Options{Name: "tap", Kind: TAP, Offload: true})
	err = tap.Each(ctx, func([]byte) error { return nil })
	testkit.Check(t, err != nil && strings.Contains(err.Error(), `"tap"`), "a TAP device with offload: %v", err)
	done := make(chan error, 1)
	go func() { done <- d.Each(context.Background(), func([]byte) error { return nil }) }()
	ip(t, ns, "link delete left")
	wantGone(t, done, `"left"`)
}

// wantGone expects a loop to end soon, with an error that says that a device is gone.
func wantGone(t *testing.T, done <-chan error, device string) {
	t.Helper()
	select {
	case err := <-done:
		testkit.Fails(t, err, device, "gone")
	case <-time.After(time.Minute):
		t.Fatal("it goes on without its device")
	}
}

// TestTAPFrames reads the frames of a TAP device.
func TestTAPFrames(t *testing.T) {
	ns := testkit.Namespace(t, "each")
	d := open(t, ns, Options{Name: "left", Kind: TAP, Addresses: leftAddresses})
	var mu sync.Mutex
	var seen []string
	background(t, func(ctx context.Context) error {
		return d.Each(ctx, func(frame []byte) error {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, FormatFrame(frame))
			return nil
		})
	})
	conn := testkit.Must(testkit.Dial(ns, "udp", "10.9.0.77:53"))(t)
	defer conn.Close()
	testkit.Must(conn.Write([]byte("who has it?")))(t)
	testkit.Eventually(t, 5*time.Second, func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, line := range seen {
			if strings.HasSuffix(line, "> ff:ff:ff:ff:ff:ff ARP") {
				return nil
			}
		}
		return fmt.Errorf("no ARP request in %q", seen)
	})
}

func TestBatch(t *testing.T) {
	d := open(t, testkit.Namespace(t, "batch"), Options{Offload: true, MTU: 576})
	b := d.newBatch()
	if want := packetSize / d.mtu; cap(b.lengths) < want {
		t.Errorf("room for %d packets, want %d: what one read returns at MTU %d", cap(b.lengths), want, d.mtu)
	}
	count := 0
	for b.add(payload(count + 1)) {
		count++
	}
	testkit.Check(t, count == len(b.lengths) && count == cap(b.lengths),
		"%d packets added, %d in it", count, len(b.lengths))
	for i := range count {
		testkit.Require(t, bytes.Equal(b.packet(i), payload(i+1)), "packet %d is another", i)
	}
	b.lengths = b.lengths[:0]
	testkit.Check(t, len(b.lengths) == 0 && !b.add(make([]byte, packetSize+1)) && b.add(make([]byte, packetSize)),
		"%d packets after Reset and one too large", len(b.lengths))
}
