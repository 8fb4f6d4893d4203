// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

// TestBuffersWithoutPrivileges sets the buffers on a thread without capabilities.
func TestBuffersWithoutPrivileges(t *testing.T) {
	const size = 1 << 30 // more than anyone may have
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends
		failed <- func() error {
			header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
			if err := unix.Capset(&header, &none[0]); err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			before, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
			if err != nil {
				return err
			}
			if err := setBuffers(fd, size); err != nil {
				return err
			}
			got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
			testkit.Check(t, err == nil && got >= before && got < size, "buffer of %d bytes, had %d: %v", got, before, err)
			return nil
		}()
	}()
	err := <-failed
	testkit.Check(t, err == nil, "%v", err)
}

// TestHeader refuses invalid headers.
func TestHeader(t *testing.T) {
	for name, spoil := range map[string]func(*header){
		"":            func(*header) {},
		"protocol":    func(h *header) { h.Protocol-- },
		"no workload": func(h *header) { h.Spec.Workload = "" },
		"socket":      func(h *header) { h.Spec.Workload, h.Spec.Flows, h.Spec.Reverse = load.UDPStream, 1, false },
		"flows":       func(h *header) { h.Spec.Flows = load.MaxFlows + 1 },
		"rr flows":    func(h *header) { h.Spec.Workload, h.Spec.Reverse = load.TCPRR, false },
		"stall":       func(h *header) { h.Spec.Stall = -1 },
		"window":      func(h *header) { h.Spec.Window = 1 },
		"request":     func(h *header) { h.Spec.Request = -1 },
		"response":    func(h *header) { h.Spec.Response++ },
		"delay":       func(h *header) { h.Spec.Delay = 1 },
		"reverse":     func(h *header) { h.Spec.Workload, h.Spec.Flows = load.TCPRR, 1 },
	} {
		h := newHeader(load.Spec{Workload: load.TCPStream, Flows: load.MaxFlows, Request: 100, Response: 1 << 20, Stall: 7,
			Reverse: true, Namespace: "/run/netns/x"})
		if spoil(&h); (h.check(unix.SOCK_STREAM) == nil) != (name == "") || h.Spec.Namespace != "" {
			t.Errorf("%q: %+v, %v", name, h, h.check(unix.SOCK_STREAM))
		}
	}
}

func checkFlows(t *testing.T, m load.Measurement, want int) {
	t.Helper()
	testkit.Check(t, m.Flows == want, "figures of %d flows, want %d", m.Flows, want)
	// The machine's time is counted once, not for each flow.
	if cpus := float64(runtime.NumCPU()); m.Machine.BusySeconds > m.Machine.Seconds*cpus+0.02 {
		t.Errorf("machine busy for %g s of %g on %g CPUs", m.Machine.BusySeconds, m.Machine.Seconds, cpus)
	}
}

// TestFlowsWindow runs streams over several flows in one window. The short form has one number of flows over IPv6.
func TestFlowsWindow(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		p := newPair(t, host)
		for _, workload := range []string{load.TCPStream, load.UDPStream} {
			all := []int{3, 1, load.MaxFlows}
			if host == "::1" {
				all = all[:testkit.Repeats(1, len(all))]
			}
			for _, flows := range all {
				t.Run(fmt.Sprintf("%s/%s/%d", host, workload, flows), func(t *testing.T) {
					spec := p.spec(workload)
					spec.Flows = flows
					if workload == load.UDPStream {
						spec.Rate = 200e6
					}
					m, err := p.client.Run(t.Context(), spec)
					testkit.Succeed(t, err)
					checkFlows(t, m, flows)
					checkRate(t, m, "Gbit/s", float64(m.Count)*8/1e9)
					testkit.Check(t, m.Count != 0 && !(m.Seconds < 0.2), "%d bytes in %g s", m.Count, m.Seconds)
					if workload == load.UDPStream {
						checkDatagrams(t, m)
					}
				})
			}
		}
	}
}

// TestFlowsRate offers a rate over one CPU that client and server share. All of it arrives in order, and it is never
// faster than the rate. So few datagrams fit into the queues on the way even if the server does not run at all.
func TestFlowsRate(t *testing.T) {
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "load")
	o := agentOptions(ns)
	o.CPU = 0
	p := pair{ns: ns, client: startAgent(t, o), server: startAgent(t, o)}
	testkit.Succeed(t, p.server.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")))
	for _, flows := range []int{0, 3} {
		spec := p.spec(load.UDPStream)
		spec.Rate, spec.Flows = 20e6, flows
		m, err := p.client.Run(t.Context(), spec)
		testkit.Succeed(t, err)
		testkit.Check(t, m.Received == m.Sent && m.OutOfOrder == 0,
			"%d flows: sent %d, received %d, %d out of order", flows, m.Sent, m.Received, m.OutOfOrder)
		checkOffered(t, m, spec)
	}
}
