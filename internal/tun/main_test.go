// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }

// Addresses of the two devices of tests.
var (
	leftAddresses  = prefixes("10.9.0.1/24", "fd00:9::1/64")
	rightAddresses = prefixes("10.9.0.2/24", "fd00:9::2/64")
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// open opens a device, which is closed when the test is over.
func open(t testing.TB, ns *netns.Namespace, options Options) *Device {
	t.Helper()
	d, err := Open(ns, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// background runs fn until the test ends or stop is called, which returns fn's error.
func background(t testing.TB, fn func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stopped := false
	stop = func() error {
		cancel()
		stopped = true
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return fmt.Errorf("still running a minute after its context ended")
		}
	}
	t.Cleanup(func() {
		if stopped {
			return
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}

// payload is bytes that differ everywhere.
func payload(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return data
}

// ip runs iproute2 in a namespace.
func ip(t testing.TB, ns *netns.Namespace, args string) string {
	t.Helper()
	testkit.RequireTool(t, "ip")
	cmd := exec.Command("ip", strings.Fields(args)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out.String())
	}
	return out.String()
}

// ping sends an ICMP echo request with so much data and waits for its reply.
func ping(ns *netns.Namespace, to string, size int) error {
	addr := netip.MustParseAddr(to)
	network, local, protocol := "ip4:icmp", "0.0.0.0", 1
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if addr.Is6() {
		network, local, protocol = "ip6:ipv6-icmp", "::", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var conn *icmp.PacketConn
	err := ns.Do(func() (err error) {
		conn, err = icmp.ListenPacket(network, local)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	body := &icmp.Echo{ID: 4711, Seq: size, Data: payload(size)}
	message, err := (&icmp.Message{Type: request, Body: body}).Marshal(nil) // the kernel sums ICMPv6
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.WriteTo(message, &net.IPAddr{IP: addr.AsSlice()}); err != nil {
		return err
	}
	buffer := make([]byte, 1<<16)
	for {
		n, peer, err := conn.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("ping %s with %d bytes: %w", to, size, err)
		}
		got, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil {
			return err
		}
		echo, ok := got.Body.(*icmp.Echo)
		if !ok || got.Type != reply || peer.String() != to {
			continue // the kernel's own, such as neighbour discovery
		}
		if echo.ID != body.ID || echo.Seq != body.Seq || !bytes.Equal(echo.Data, body.Data) {
			return fmt.Errorf("ping %s with %d bytes: another reply came back", to, size)
		}
		return nil
	}
}
