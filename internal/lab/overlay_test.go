// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestNoChecksumFault finds none in sound tunnels, with traffic that would show
// one, and changes nothing.
func TestNoChecksumFault(t *testing.T) {
	s := store(t)
	for _, o := range []lab.Options{
		{Link: "bridge", Overlay: lab.OverlayVXLAN}, {Link: "ovs-veth", Overlay: lab.OverlayVXLAN},
		{Link: "bridge", Overlay: lab.OverlayBridgedInternal},
	} {
		t.Run(o.Link+"/"+o.Overlay, func(t *testing.T) {
			t.Parallel()
			o.Topology = lab.TopologyTwoHosts
			l := up(t, s, options(o))
			capture := startCapture(t, place(t, l, lab.HostA))
			text, err := l.ChecksumFault(context.Background())
			if err != nil || text != "" {
				t.Errorf("a fault in a sound tunnel: %q, %v", text, err)
			}
			ends := []netip.Addr{lab.Addresses(l.Options, lab.PodB)[0], lab.Addresses(l.Options, lab.PodA)[0]}
			if seen := capture.seen(ends[0], ends[1]); seen.bytes < 1<<21 || seen.plain > 0 {
				t.Errorf("the test's traffic on the wire: %+v", seen)
			}
		})
	}
}

// TestChecksumFault has packets with wrong checksums arrive meanwhile.
func TestChecksumFault(t *testing.T) {
	l := up(t, store(t), options(lab.Options{Topology: lab.TopologyTwoHosts, Link: "bridge", Overlay: lab.OverlayVXLAN}))
	b, host := place(t, l, lab.PodB), place(t, l, lab.HostB)
	if on, err := rtnl.In(host).Offloads(podlink.VXLANDevice); err != nil || !on["tx-checksum"] {
		t.Fatalf("offloads before: %v, %v", on, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	sending := make(chan error, 1)
	go func() { sending <- sendWrong(ctx, b, lab.Addresses(l.Options, lab.PodA)[0]) }()
	receiver := place(t, l, lab.PodA)
	testkit.Eventually(t, 5*time.Second, func() error { // until the sender runs
		if counted, err := netstat.ReadChecksumErrors(receiver); err != nil || counted.UDP == 0 {
			return fmt.Errorf("counted %+v, %v", counted, err)
		}
		return nil
	})
	text, err := l.ChecksumFault(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-sending; err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"UDP packets came through VXLAN with a wrong checksum", "mst-vxlan of host-a", "mst-vxlan of host-b", "still do"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	if on, err := rtnl.In(host).Offloads(podlink.VXLANDevice); err != nil || on["tx-checksum"] || on["tso"] {
		t.Errorf("offloads after: %v, %v", on, err)
	}
	if text, err := l.ChecksumFault(context.Background()); err != nil || text != "" {
		t.Errorf("without wrong packets: %q, %v", text, err)
	}
}

// sendWrong sends UDP with a wrong checksum, every millisecond until ctx ends.
func sendWrong(ctx context.Context, from *netns.Namespace, to netip.Addr) error {
	var fd int
	err := from.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	packet := []byte{0x30, 0x39, 0x30, 0x39, 0, 12, 0xba, 0xad, 'b', 'a', 'd', '!'} // ports, length, checksum, payload
	for ctx.Err() == nil {
		if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func TestChecksumFaultWithoutOverlay(t *testing.T) {
	l := up(t, store(t), options(lab.Options{Topology: lab.TopologyTwoHosts, Link: "veth"}))
	if _, err := l.ChecksumFault(context.Background()); err == nil || !strings.Contains(err.Error(), "no overlay") {
		t.Errorf("error %v", err)
	}
}
