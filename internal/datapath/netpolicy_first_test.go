// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// TestPoliciesBeforeConnections has root in a pod send packets as if they were of a connection that is older than the policies, in which the
// pod is the server. Where the other pod has had policies from the beginning, there is no such connection.
func TestPoliciesBeforeConnections(t *testing.T) {
	for _, first := range []bool{false, true} {
		n, d := bridged(t), openTest(t)
		if first {
			applyPolicies(t, d, denyIngressA)
		}
		n.labelled(t, d)
		applyPolicies(t, d, denyIngressA)
		before := counts(t, d)
		for _, flags := range []uint8{flagACK, flagSYN | flagACK} {
			forged := packet{src: netip.MustParseAddrPort(podB4 + ":80"), dst: netip.MustParseAddrPort(podA4 + ":40000"), proto: protoTCP, flags: flags, payload: "data"}
			sendRaw(t, n, forged)
		}
		want := map[bool]uint64{true: 2}[first]
		testkit.Eventually(t, 5*time.Second, func() error {
			if counts(t, d)["to_pod"] < before["to_pod"]+2-want {
				return errors.New("the packets have not come")
			}
			return nil
		})
		if dropped := delta(t, d, before)["drop_policy_ingress"]; dropped != want {
			t.Errorf("policies first: %v: %d packets dropped, want %d", first, dropped, want)
		}
	}
}

// sendRaw has pod b send an IPv4 packet by a raw socket.
func sendRaw(t *testing.T, n network, p packet) {
	t.Helper()
	if err := n.pods[1].Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, p.frame()[14:], 0, &unix.SockaddrInet4{Addr: p.dst.Addr().As4()})
	}); err != nil {
		t.Fatal(err)
	}
}

// TestNodeRefuses connects pods to a port of the node that nobody listens on: what the node's kernel answers without a socket arrives, while
// a policy of one of them is in force.
func TestNodeRefuses(t *testing.T) {
	for _, m := range linkModes() {
		t.Run(m.name, func(t *testing.T) {
			n, d := m.make(t), openTest(t)
			n.labelled(t, d)
			applyPolicies(t, d, onlyOutsideToA)
			for _, node := range []string{gateway4, gateway6} {
				for _, pod := range n.pods {
					if err := pod.Do(func() error {
						_, err := (&net.Dialer{Timeout: 20 * time.Second}).Dial("tcp", net.JoinHostPort(node, "1"))
						return err
					}); !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("%s to %s: %v", pod.Name(), node, err)
					}
				}
			}
		})
	}
}
