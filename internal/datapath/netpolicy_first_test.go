// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// TestPoliciesBeforeConnections has root in a pod send packets as if they were of a connection that is older than the policies, in which the
// pod is the server. Where the other pod has had policies from the beginning, or for long, there is no such connection.
func TestPoliciesBeforeConnections(t *testing.T) {
	for _, c := range []struct {
		name             string
		first, long, ip4 bool
	}{{"pods first", false, false, false}, {"policies first", true, false, false}, {"policies first, IPv4 alone", true, false, true}, {"pods long before", false, true, false}} {
		t.Run(c.name, func(t *testing.T) {
			n, d := bridged(t), openTest(t)
			if c.ip4 {
				n.run(t, "-n PODA addr del "+podA6+"/64 dev eth0\n-n PODB addr del "+podB6+"/64 dev eth0")
			}
			if c.first {
				applyPolicies(t, d, denyIngressA)
			}
			n.labelled(t, d)
			applyPolicies(t, d, denyIngressA)
			if c.long {
				ageListeners(t, d)
			}
			port, want := ":40000", uint64(0)
			if c.first || c.long {
				port, want = ":9100", 2
			}
			before := counts(t, d)
			for _, flags := range []uint8{flagACK, flagSYN | flagACK} {
				sendRaw(t, n, packet{src: netip.MustParseAddrPort(podB4 + ":80"), dst: netip.MustParseAddrPort(podA4 + port), proto: protoTCP, flags: flags, payload: "data"})
			}
			testkit.Eventually(t, 5*time.Second, func() error {
				if now := counts(t, d); now["from_pod"] < before["from_pod"]+2 {
					return errors.New("the packets have not come")
				}
				return nil
			})
			if dropped := delta(t, d, before)["drop_policy_ingress"]; dropped != want {
				t.Errorf("%d packets dropped, want %d", dropped, want)
			}
		})
	}
}

// TestServerRevivesNothing ends a connection by a policy, and has its row go: what the server still sends does not begin it anew, though the
// server may open connections.
func TestServerRevivesNothing(t *testing.T) {
	for _, port := range []int{20000, 40000} {
		testForgotten(t, port, func(t *testing.T, n network, d *Datapath, server netip.AddrPort, _ net.Conn) {
			applyPolicies(t, d, denyIngressA)
			before := counts(t, d)
			more := packet{src: server, dst: netip.MustParseAddrPort(fmt.Sprint(podB4, ":", port)), proto: protoTCP, flags: flagACK, payload: "more"}
			succeed(t, sendRawFrom(n.pods[0], more))
			testkit.Eventually(t, 5*time.Second, func() error {
				if delta(t, d, before)["drop_policy_ingress"] == 0 {
					return errors.New("the server's packet is not dropped")
				}
				return nil
			})
		})
	}
}

// TestForgottenGoOn has the row of a connection go that policies allow in the direction in which it was opened alone. It goes on if the
// client has an ephemeral port, whoever speaks first.
func TestForgottenGoOn(t *testing.T) {
	testForgotten(t, 40000, func(t *testing.T, n network, d *Datapath, server netip.AddrPort, conn net.Conn) {
		before := counts(t, d)
		succeed(t, sendRawFrom(n.pods[0], packet{src: server, dst: netip.MustParseAddrPort(podB4 + ":40000"), proto: protoTCP, flags: flagACK}))
		if err := exchanged(conn); err != nil {
			t.Error(err)
		}
		if d := delta(t, d, before); d["drop_policy_ingress"]+d["drop_policy_egress"] > 0 {
			t.Errorf("%v", d)
		}
	})
}

// testForgotten opens a connection from a port of pod b to pod a, which joined with a policy that lets b in and a open none, and has its row go.
func testForgotten(t *testing.T, port int, then func(t *testing.T, n network, d *Datapath, server netip.AddrPort, conn net.Conn)) {
	t.Run(fmt.Sprint("port ", port), func(t *testing.T) {
		n, d := bridged(t), openTest(t)
		applyPolicies(t, d, fromBToA, strings.Replace(denyEgressB, "app: b", "app: a", 1))
		n.labelled(t, d)
		server := testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(podA4, "9100"))
		conn := n.openFrom(t, port, server)
		must(d.objects.EndConnections(func(objects.Slot) bool { return true }))(t)
		then(t, n, d, server, conn)
	})
}

// ageListeners has pods have had their policies for a day.
func ageListeners(t *testing.T, d *Datapath) {
	t.Helper()
	ports := d.objects.Policies["policy_ports"]
	for _, key := range listed(t, d) {
		var value [8]byte
		succeed(t, ports.Lookup(&key, &value))
		at := binary.NativeEndian.Uint32(value[:])
		binary.NativeEndian.PutUint32(value[:], at-uint32(24*time.Hour>>30))
		succeed(t, ports.Put(&key, &value))
	}
}

// sendRaw has pod b send an IPv4 packet by a raw socket.
func sendRaw(t *testing.T, n network, p packet) {
	t.Helper()
	succeed(t, sendRawFrom(n.pods[1], p))
}

func sendRawFrom(pod *netns.Namespace, p packet) error {
	return pod.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, p.frame()[14:], 0, &unix.SockaddrInet4{Addr: p.dst.Addr().As4()})
	})
}

// TestNodeRefuses connects pods to a port of the node that nobody listens on: what the node's kernel answers without a socket arrives, while
// a policy of one of them is in force.
func TestNodeRefuses(t *testing.T) {
	onLinks(t, "", func(t *testing.T, m linkMode) {
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
