// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// TestAddRemote reads the forwarding entries of a VXLAN device: one for what has
// none, and those that were added.
func TestAddRemote(t *testing.T) {
	f := newHostOf(t, "bridge")
	f.network.VXLAN, f.network.MTU = testTunnel(), 1450
	pod := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	if err := AddRemote(f.network, pod); err == nil {
		t.Error("an entry for a device that is not there")
	}
	if err := f.mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := AddRemote(f.network, pod); err != nil {
			t.Fatal(err)
		}
	}
	withHandle(t, f.network.Host, func(host side) error {
		link, err := host.link(VXLANDevice)
		if err != nil {
			return err
		}
		entries, err := nl.Dump(func() ([]netlink.Neigh, error) { return host.NeighList(link.Attrs().Index, unix.AF_BRIDGE) })
		var found []string
		for _, entry := range entries {
			if entry.IP != nil { // the bridge's own entries have none
				found = append(found, entry.HardwareAddr.String()+" "+entry.IP.String())
			}
		}
		slices.Sort(found)
		if want := []string{"00:00:00:00:00:00 10.0.0.2", pod.String() + " 10.0.0.2"}; !slices.Equal(found, want) {
			t.Errorf("forwarding entries are %q, want %q", found, want)
		}
		return err
	})
}

// TestTrunkKeepsQueues has Open vSwitch change its configuration after the trunk
// got a queueing discipline.
func TestTrunkKeepsQueues(t *testing.T) {
	f := newHostOf(t, "ovs-veth")
	f.network.Trunk = uplinkName
	if err := f.mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	if err := f.network.Host.Shape(uplinkName, nl.Shape{Rate: 1e9}); err != nil {
		t.Fatal(err)
	}
	f.create(t, f.newPod(t, 0))
	withHandle(t, f.network.Host, func(host side) error {
		link, err := host.link(uplinkName)
		if err != nil {
			return err
		}
		queues, err := host.QdiscList(link)
		if !slices.ContainsFunc(queues, func(q netlink.Qdisc) bool { return q.Type() == "tbf" }) {
			t.Errorf("the trunk's queues are %v", queues)
		}
		return err
	})
}
