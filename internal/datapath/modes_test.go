// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
	"mustang/internal/tun"
)

// linkMode is a way of plugging in pods.
type linkMode struct {
	name string
	make func(testing.TB) network
}

// linkModes are all of them, with devices that complete checksums and without.
func linkModes() []linkMode {
	completing := func(t testing.TB) network { // the host's devices make the checksums of what goes into pods
		t.Helper()
		testkit.RequireTool(t, "ethtool")
		n := routed(t)
		n.run(t, `
			netns exec HOST ethtool -K va tx off
			netns exec HOST ethtool -K vb tx off`)
		return n
	}
	return []linkMode{
		{"veth", routed}, {"bridge", bridged}, {"macvlan", slaves}, {"segment", switched},
		{"ipvlan-l2", plugged("ipvlan-l2")}, {"ipvlan-l3", plugged("ipvlan-l3")}, {"ipvlan-l3s", plugged("ipvlan-l3s")},
		{"netkit", plugged("netkit")}, {"netkit-l2", plugged("netkit-l2")},
		{"ovs-veth", plugged("ovs-veth")}, {"ovs-internal", plugged("ovs-internal")},
		{"tap", plugged("tap")}, {"tun", plugged("tun")},
		{"veth without offload", plain(routed)}, {"macvlan without offload", plain(slaves)},
		{"veth whose host side is without offload", completing},
	}
}

// onLinks runs a test for each of some link modes, or for all.
func onLinks(t *testing.T, names string, test func(*testing.T, linkMode)) {
	for _, m := range linkModes() {
		if names == "" || slices.Contains(strings.Split(names, ", "), m.name) {
			t.Run(m.name, func(t *testing.T) { test(t, m) })
		}
	}
}

// onPods runs a test with two pods that are endpoints, in each of some link modes, or in all.
func onPods(t *testing.T, names string, test func(*testing.T, network, *Datapath)) {
	onLinks(t, names, func(t *testing.T, m linkMode) {
		n, d := m.make(t), openTest(t)
		n.attachBoth(t, d)
		test(t, n, d)
	})
}

// plugged are pods that the link mode of that name has plugged in.
func plugged(name string) func(testing.TB) network {
	return func(t testing.TB) network {
		t.Helper()
		mode := usable(t, name)
		n := newNetwork(t)
		n.uplink(t)
		if mode.Traits().Needs == podlink.NeedsOpenVSwitch {
			n.startOpenVSwitch(t, mode)
		}
		on := n.subnet(t, mode, gateway4+"/24", gateway6+"/64")
		n.plug(t, mode, on, 0, podA4, podA6)
		n.plug(t, mode, on, 1, podB4, podB6)
		n.relayed = [2]bool{mode.Traits().Needs == podlink.NeedsRelay, mode.Traits().Needs == podlink.NeedsRelay}
		return n
	}
}

// usable is the link mode of that name.
func usable(t testing.TB, name string) podlink.Mode {
	t.Helper()
	mode := must(podlink.Lookup(name))(t)
	testkit.RequireMode(t, mode.Probe())
	return mode
}

// uplink gives the host a device for pods to sit on.
func (n network) uplink(t testing.TB) {
	n.run(t, `
		-n HOST link add up0 type veth peer name up1
		-n HOST link set up0 up
		-n HOST link set up1 up`)
}

// startOpenVSwitch starts one that ends with the test. The programs go where its packets can be met.
func (n *network) startOpenVSwitch(t testing.TB, mode podlink.Mode) {
	t.Helper()
	if err := ovs.FindPrograms(); err != nil {
		testkit.Skip(t, err.Error())
	}
	dir := must(os.MkdirTemp("", "mst-ovs-"))(t) // a test's own path is too long for a socket
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := must(ovs.Start(n.host, filepath.Join(dir, "run"), ""))(t)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	n.ovsdb, n.inUserSpace = s.Socket(), s.Datapath() == ovs.UserSpace
	if n.inUserSpace {
		testkit.NeedsOther(t)
	}
	if n.inUserSpace || !mode.Traits().HostSide {
		n.segment = podlink.DefaultBridge
	}
}

// subnet sets the host up for pods of a link mode.
func (n network) subnet(t testing.TB, mode podlink.Mode, gateways ...string) podlink.Network {
	t.Helper()
	return n.subnetOn(t, mode, "up0", gateways...)
}

// subnetOn does so on a device of the host that may not be the only one for pods.
func (n network) subnetOn(t testing.TB, mode podlink.Mode, uplink string, gateways ...string) podlink.Network {
	t.Helper()
	on := podlink.Network{Host: n.host, Uplink: uplink, OVSDB: n.ovsdb}
	for _, g := range gateways {
		on.Gateways = append(on.Gateways, netip.MustParsePrefix(g))
	}
	succeed(t, mode.Setup(on))
	return on
}

// plug plugs in one of the pods.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say what goes where
func (n network) plug(t testing.TB, mode podlink.Mode, on podlink.Network, i int, addresses ...string) {
	t.Helper()
	pod := podlink.Pod{Namespace: n.pods[i], IfName: "eth0", HostIfName: hostDevices()[i]}
	for _, a := range addresses {
		pod.Addresses = append(pod.Addresses, netip.MustParseAddr(a))
	}
	must(mode.Create(on, pod))(t)
	if mode.Traits().Needs == podlink.NeedsRelay {
		relay(t, mode.Name(), n.host, pod)
	}
}

// hostDevices are the names of the pods' devices on the host.
func hostDevices() [2]string { return [2]string{"va", "vb"} }

// TestWithoutNamespace has a pod behind TAP of which only its address and MAC are known, as of a VM.
func TestWithoutNamespace(t *testing.T) {
	n, d := plugged("tap")(t), openTest(t)
	vm := must(rtnl.In(n.pods[1]).Device("eth0"))(t)
	attach := EndpointSpec{Host: n.host, HostIfName: "vb", MAC: vm.MAC, Addresses: []netip.Addr{
		netip.MustParseAddr(podB4), netip.MustParseAddr(podB6), netip.MustParseAddr("fe80::1"),
	}}
	for i, a := range []EndpointSpec{n.attachment(0), attach} {
		if endpoints, change, err := d.Endpoints().Put(t.Context(), a); err != nil || change != Added || len(endpoints) != 2 {
			t.Fatalf("AddEndpoint %d: %v, %v, %v", i, endpoints, change, err)
		}
	}
	if _, change, err := d.Endpoints().Put(t.Context(), attach); err != nil || change != Unchanged {
		t.Errorf("Put again: %v, %v", change, err)
	}
	for _, f := range families() {
		testTraffic(t, trafficCase{n, d, f, "tcp", "redirect_device", false})
	}
	if err := d.Endpoints().DeleteDevice(t.Context(), attach); err != nil {
		t.Error(err)
	}
	wantEndpoints(t, d, podA4, podA6)
}

// relay joins the two ends of a pod's link, and returns when packets can pass.
func relay(t testing.TB, mode string, host *netns.Namespace, pod podlink.Pod) {
	t.Helper()
	kind := tun.TUN
	if mode == "tap" {
		kind = tun.TAP
	}
	open := func(ns *netns.Namespace, name string) *tun.Device {
		device := must(tun.Open(ns, tun.Options{Name: name, Kind: kind, Offload: true}))(t)
		return device
	}
	outer, inner := open(host, pod.HostIfName), open(pod.Namespace, pod.IfName)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = tun.Switch(ctx, outer, inner) }) // an error if the devices go first
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = outer.Close()
		_ = inner.Close()
	})
}

// switched pods are ports of a bridge by their own devices: as with a switch that the kernel knows nothing of.
func switched(t testing.TB) network {
	n := bridged(t)
	n.segment = "br0"
	return n
}
