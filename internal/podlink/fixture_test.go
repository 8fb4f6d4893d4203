// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// fixture is a host with an uplink, and pods of one mode on it, which all go when
// the test is over.
type fixture struct {
	mode    Mode
	network Network
	pods    []Pod
	links   []Attachment
}

// uplinkName is the host's uplink. It has the name that pods' devices have too,
// as is usual.
const uplinkName = "eth0"

// newHost makes a host that is not set up, with an uplink to nowhere.
func newHost(t *testing.T, mode Mode) *fixture {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireMode(t, mode.Probe())
	host := testkit.Namespace(t, "host")
	addUplink(t, host)
	return &fixture{mode: mode, network: Network{
		Host:     host,
		Uplink:   uplinkName,
		Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.10.1/24"), netip.MustParsePrefix("fd00:10::1/64")},
	}}
}

// newFixture makes a host that is set up, and pods as 192.168.10.10 and
// fd00:10::10, and so on.
func newFixture(t *testing.T, mode Mode, pods int) *fixture {
	t.Helper()
	f := newHost(t, mode)
	if err := mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		f.create(t, f.newPod(t, i))
	}
	return f
}

// newPod describes the i-th pod, with a namespace but not yet plugged in.
func (f *fixture) newPod(t *testing.T, i int) Pod {
	t.Helper()
	suffix := string(rune('a' + i))
	return Pod{
		Namespace:  testkit.Namespace(t, "pod-"+suffix),
		IfName:     "eth0",
		HostIfName: "mst" + suffix,
		Addresses: []netip.Addr{
			netip.AddrFrom4([4]byte{192, 168, 10, byte(10 + i)}),
			netip.MustParseAddr("fd00:10::1" + string(rune('0'+i))),
		},
	}
}

func (f *fixture) create(t *testing.T, pod Pod) {
	t.Helper()
	link, err := f.mode.Create(f.network, pod)
	if err != nil {
		t.Fatal(err)
	}
	f.pods, f.links = append(f.pods, pod), append(f.links, link)
}

// addUplink gives a host a device that is up and has a carrier.
func addUplink(t *testing.T, host *nl.Namespace) {
	t.Helper()
	withHandle(t, host, func(s side) error {
		link := &netlink.Veth{LinkAttrs: attrs(uplinkName), PeerName: "wire", PeerTxQLen: -1}
		if err := s.LinkAdd(link); err != nil {
			return err
		}
		steps := []func(netlink.Link) error{
			// Otherwise its link-local address changes its state in the middle of a test.
			func(l netlink.Link) error { return apply(s.ns, device(l.Attrs().Name, nil)) },
			s.up,
			s.awaitCarrier,
		}
		for _, step := range steps {
			for _, name := range []string{uplinkName, "wire"} {
				link, err := s.link(name)
				if err != nil {
					return err
				}
				if err := step(link); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// withHandle runs fn with a netlink socket inside ns.
func withHandle(t *testing.T, ns *nl.Namespace, fn func(s side) error) {
	t.Helper()
	s, err := openSide(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := fn(s); err != nil {
		t.Fatal(err)
	}
}

// forEachMode runs a test for each mode that this kernel has.
func forEachMode(t *testing.T, test func(t *testing.T, mode Mode)) {
	for _, mode := range Modes() {
		t.Run(mode.Name(), func(t *testing.T) { test(t, mode) })
	}
}
