// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// awaitTraffic waits until the pair's loopback carries a run.
func awaitTraffic(t *testing.T, p pair) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		device, err := rtnl.In(p.ns).Device("lo")
		if err != nil {
			return err
		}
		if device.RxPackets < 100 {
			return fmt.Errorf("%d packets", device.RxPackets)
		}
		return nil
	})
}

func awaitError(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		testkit.Require(t, err != nil, "the run succeeded")
		return err
	case <-time.After(time.Minute):
		t.Fatal("the run hangs")
		return nil
	}
}

// TestRefused connects to a closed port, and listens on a port in use.
func TestRefused(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	spec := p.spec(load.TCPRR)
	spec.Target = netip.MustParseAddrPort("127.0.0.1:1")
	_, err := p.client.Run(t.Context(), spec)
	var remote *load.RemoteError
	testkit.Check(t, errors.Is(err, unix.ECONNREFUSED) && errors.As(err, &remote), "error is %v", err)
	err = p.server.Listen(t.Context(), p.server.Address())
	testkit.Check(t, errors.Is(err, unix.EADDRINUSE), "a second listen on the same address: %v", err)
	// Both agents still work.
	_, err = p.client.Run(t.Context(), p.spec(load.TCPRR))
	testkit.Check(t, err == nil, "%v", err)
}

// setLoopbackDown makes both ends vanish for each other, without a reset.
func setLoopbackDown(t *testing.T, p pair) {
	t.Helper()
	err := p.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		request, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		request.SetUint16(0)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
	})
	testkit.Succeed(t, err)
}

// TestServerNeverAnswers connects to a port that accepts and never answers.
func TestServerNeverAnswers(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	a := startAgent(t, agentOptions(nil))
	for _, workload := range load.Workloads() {
		spec := load.Spec{Workload: workload, Target: netip.MustParseAddrPort(listener.Addr().String()),
			Duration: 100 * time.Millisecond, Stall: 300 * time.Millisecond}
		if strings.HasPrefix(workload, "udp") {
			silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
			testkit.Succeed(t, err)
			defer func() { _ = silent.Close() }()
			spec.Target = netip.MustParseAddrPort(silent.LocalAddr().String())
		}
		_, err := a.Run(t.Context(), spec)
		testkit.Check(t, errors.Is(err, unix.ETIMEDOUT), "%s: error is %v", workload, err)
	}
}

// TestNoHeader sends something else than a header; the server stays usable.
func TestNoHeader(t *testing.T) {
	a := startAgent(t, agentOptions(nil))
	testkit.Succeed(t, a.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")))
	conn, err := net.Dial("tcp", a.Address().String())
	testkit.Succeed(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte(strings.Repeat("GET / ", 20)))
	testkit.Require(t, err == nil, "%v", err)
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, err := conn.Read(make([]byte, 1))
	testkit.Check(t, n == 0 && !errors.Is(err, os.ErrDeadlineExceeded), "the client got %d bytes, %v", n, err)
	spec := load.Spec{Workload: load.TCPRR, Target: a.Address(), Limit: 5}
	_, err = a.Run(t.Context(), spec)
	testkit.Check(t, err == nil, "%v", err)
}
