// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// pod is the network of a pod, as read from its namespace.
type pod struct {
	ns    *netns.Namespace
	addrs []netip.Addr // of the device, one of each family
}

func newPod(t testing.TB, ns *netns.Namespace) pod {
	t.Helper()
	device := testkit.Must(rtnl.In(ns).Device("eth0"))(t)
	p := pod{ns: ns}
	for _, prefix := range device.Addrs {
		if addr := prefix.Addr(); !addr.IsLinkLocalUnicast() {
			p.addrs = append(p.addrs, addr)
		}
	}
	slices.SortFunc(p.addrs, netip.Addr.Compare)
	testkit.Require(t, len(p.addrs) == 2 && p.addrs[0].Is4() && p.addrs[1].Is6(),
		"eth0 has the addresses %v, want one of each family", p.addrs)
	return p
}

func (m *machine) podOf(t testing.TB, pid int) pod {
	t.Helper()
	ns := testkit.Must(netns.Open(m.path(fmt.Sprintf("/proc/%d/ns/net", pid))))(t)
	t.Cleanup(func() { _ = ns.Close() })
	return newPod(t, ns)
}

// payloads are the sent data, by protocol.
var payloads = map[string][]byte{"tcp": bytes.Repeat([]byte("mustang "), 1<<16), "udp": bytes.Repeat([]byte("m"), 1200)}

// checkPods sends TCP and UDP between two pods, and between them and the host, in both families.
func checkPods(t testing.TB, m *machine, a, b pod) {
	t.Helper()
	try := func(from *netns.Namespace, seen netip.Addr, to pod, i int) {
		t.Helper()
		for network, data := range payloads {
			server := testkit.Echo(t, to.ns, network, netip.AddrPortFrom(to.addrs[i], 0).String())
			peer, err := testkit.RoundTrip(t, from, network, server.String(), data)
			switch {
			case err != nil:
				t.Errorf("to %s: %v", to.addrs[i], err)
			case seen.IsValid() && peer.Addr() != seen:
				t.Errorf("%s to %s: the server sees %s, want %s", network, to.addrs[i], peer.Addr(), seen)
			}
		}
	}
	if m.plugin.slow {
		awaitAddresses(t, m.host)
	}
	for i := range a.addrs {
		try(a.ns, a.addrs[i], b, i)
		try(b.ns, b.addrs[i], a, i)
		if !m.plugin.apart {
			try(m.host, netip.Addr{}, a, i)
		}
	}
}

// Ports of pods with a published port.
const podPort, hostPort = 5201, 6201

// checkPorts connects to the host's published port: from outside, where the pod must see
// the client's own address, and from the host to its own and its loopback addresses.
func checkPorts(t testing.TB, m *machine, to pod) {
	t.Helper()
	for i, addr := range to.addrs {
		for network, data := range payloads {
			testkit.Echo(t, to.ns, network, netip.AddrPortFrom(addr, podPort).String())
			target := netip.AddrPortFrom(hostAddrs[i].Addr(), hostPort).String()
			peer, err := testkit.RoundTrip(t, m.outside, network, target, data)
			switch {
			case err != nil:
				t.Errorf("published port: %v", err)
			case peer.Addr() != outsideAddrs[i].Addr():
				t.Errorf("published port, %s to %s: the pod sees %s, want %s", network, target, peer.Addr(), outsideAddrs[i].Addr())
			}
			loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}[i]
			local := []netip.Addr{hostAddrs[i].Addr()}
			if addr.Is4() || m.plugin.loopback {
				local = append(local, loopback)
			}
			for _, to := range local {
				_, err := testkit.RoundTrip(t, m.host, network, netip.AddrPortFrom(to, hostPort).String(), data)
				testkit.Check(t, err == nil, "published port, from the host: %v", err)
			}
			_, err = testkit.RoundTrip(t, to.ns, network, netip.AddrPortFrom(loopback, hostPort).String(), data)
			testkit.Check(t, err != nil, "published port: the pod's own loopback has it too")
		}
	}
}

// awaitAddresses waits until no address of a namespace is tentative.
func awaitAddresses(t testing.TB, ns *netns.Namespace) {
	t.Helper()
	testkit.RequireTool(t, "ip")
	testkit.Eventually(t, runTimeout, func() error {
		var out strings.Builder
		cmd := exec.Command("ip", "-6", "-oneline", "address", "show", "tentative")
		cmd.Stdout = &out
		if err := ns.Start(cmd); err != nil {
			return err
		}
		if err := cmd.Wait(); err != nil {
			return err
		}
		if out.Len() > 0 {
			return fmt.Errorf("not yet: %s", out.String())
		}
		return nil
	})
}
