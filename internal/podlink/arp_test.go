// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// testOVSAnswers has a pod ask for its gateway. Only the switch may lead there.
func testOVSAnswers(t *testing.T, f *fixture, _ string) {
	f.create(t, f.newPod(t, 0))
	pod, link := f.pods[0], f.links[0]
	q := question{pod.Namespace, link.IfName, pod.Addresses[0], f.network.Gateways[0].Addr()}
	q.wantAnswer(t, link.NodeMAC)
}

// TestMacvlanAnswers has a neighbour of the host ask for the uplink's address. Only the
// uplink may answer: what comes to the host's own device is not what comes by the
// uplink to the host.
func TestMacvlanAnswers(t *testing.T) {
	f := newHostOf(t, "macvlan")
	address := netip.MustParsePrefix("192.0.2.1/24")
	testkit.Succeed(t, rtnl.In(f.network.Host).Configure(uplinkName, rtnl.DeviceConfig{Addresses: []netip.Prefix{address}, Up: true}))
	testkit.Succeed(t, f.mode.Setup(f.network))
	q := question{f.network.Host, "wire", netip.MustParseAddr("192.0.2.9"), address.Addr()}
	fd, everyone := q.open(t)
	defer unix.Close(fd)
	// The device answers in turn: to the second request after the first.
	second := q
	second.target = f.network.Gateways[0].Addr()
	own, link := findDevice(t, q.ns, MacvlanHostDevice), findDevice(t, q.ns, q.device)
	testkit.Eventually(t, 10*time.Second, func() error {
		for _, q := range []question{q, second} {
			if err := unix.Sendto(fd, q.request(link.MAC), 0, everyone); err != nil {
				return err
			}
		}
		for {
			message := make([]byte, 128)
			n, _, err := unix.Recvfrom(fd, message, 0)
			if err != nil {
				return fmt.Errorf("ask for %v on %q: %w", second.target, q.device, err)
			}
			from := second.answerIn(message[:n])
			if from.String() == own.MAC.String() {
				return nil
			}
			if from := q.answerIn(message[:n]); from.String() == own.MAC.String() {
				t.Errorf("%q answers for %v, which is the uplink's", own.Name, q.target)
			}
		}
	})
}

// question is an ARP request for target, sent on a device by who says to be
// sender.
type question struct {
	ns             *netns.Namespace
	device         string
	sender, target netip.Addr
}

// wantAnswer asks until it is answered with that MAC address, and with no other
// before.
func (q question) wantAnswer(t *testing.T, want net.HardwareAddr) {
	t.Helper()
	link := findDevice(t, q.ns, q.device)
	fd, everyone := q.open(t)
	defer unix.Close(fd)
	testkit.Eventually(t, 10*time.Second, func() error { // a switch may lose what it gets first
		if err := unix.Sendto(fd, q.request(link.MAC), 0, everyone); err != nil {
			return err
		}
		for {
			mac, err := q.answer(fd)
			switch {
			case err != nil:
				return fmt.Errorf("ask for %v on %q: %w", q.target, q.device, err)
			case mac.String() == want.String():
				return nil
			case mac != nil:
				t.Errorf("%v answers for %v on %q, not only %v", mac, q.target, q.device, want)
			}
		}
	})
}

// open opens a socket on the device, and returns it with the address of all
// neighbours.
func (q question) open(t *testing.T) (fd int, everyone *unix.SockaddrLinklayer) {
	t.Helper()
	link := findDevice(t, q.ns, q.device)
	err := q.ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	testkit.Succeed(t, err)
	arp := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
	timeout := unix.NsecToTimeval(time.Second.Nanoseconds())
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: arp, Ifindex: link.Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
	)
	testkit.Succeed(t, err)
	return fd, &unix.SockaddrLinklayer{
		Protocol: arp, Ifindex: link.Index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	}
}

// request is the message (RFC 826).
func (q question) request(mac net.HardwareAddr) []byte {
	message := []byte{0, unix.ARPHRD_ETHER, unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff, 6, 4, 0, 1}
	message = append(append(message, mac...), q.sender.AsSlice()...)
	return append(append(message, make([]byte, 6)...), q.target.AsSlice()...)
}

// answer receives a message, and returns the MAC address if it is an answer.
func (q question) answer(fd int) (net.HardwareAddr, error) {
	message := make([]byte, 128)
	n, _, err := unix.Recvfrom(fd, message, 0)
	if err != nil {
		return nil, err
	}
	return q.answerIn(message[:n]), nil
}

// answerIn is the MAC address in a message, if that is an answer.
func (q question) answerIn(message []byte) net.HardwareAddr {
	const reply, length = 2, 28
	if len(message) < length || message[7] != reply || [4]byte(message[14:18]) != q.target.As4() {
		return nil
	}
	return message[8:14]
}
