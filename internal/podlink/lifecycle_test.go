// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// echoOnce connects from one pod of f to the other in both families.
func echoOnce(t *testing.T, f *fixture) {
	t.Helper()
	reach(t, f.pods[0].Namespace, f.pods[1].Namespace, f.pods[1].Addresses...)
}

func reach(t *testing.T, from, to *netns.Namespace, addrs ...netip.Addr) {
	t.Helper()
	for _, addr := range addrs {
		server := testkit.Echo(t, to, "tcp", netip.AddrPortFrom(addr, 0).String())
		testkit.Must(testkit.RoundTrip(t, from, "tcp", server.String(), []byte("hello")))(t)
	}
}

// TestNothingLeft goes through all of a mode twice. Afterwards the host and the
// pod are as before, and the root namespace was never changed.
func TestNothingLeft(t *testing.T) {
	testkit.RequireRoot(t)
	loadModules(t)
	root := testkit.RootSnapshot(t)
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newHost(t, mode)
		pods := []Pod{f.newPod(t, 0), f.newPod(t, 1)}
		empty := remains(t, f.network.Host, pods[0].Namespace, pods[1].Namespace)
		for range 2 {
			testkit.Succeed(t, mode.Setup(f.network))
			f.pods, f.links = nil, nil
			for _, pod := range pods {
				f.create(t, pod)
				testkit.Succeed(t, mode.Check(f.network, pod))
			}
			echoOnce(t, f)
			for _, pod := range append(pods, pods[0]) { // a second Delete succeeds
				testkit.Succeed(t, mode.Delete(f.network, pod))
			}
			for range 2 {
				testkit.Succeed(t, mode.Teardown(f.network))
			}
		}
		nothingLeft(t, empty, remains(t, f.network.Host, pods[0].Namespace, pods[1].Namespace))
	})
	got := testkit.RootSnapshot(t)
	testkit.Check(t, got == root, "the root namespace changed:\n%s", difference(root, got))
}

// TestSetupAgain repeats Setup under running pods. They must not notice, and missing parts must be repaired. Then a new
// pod gets the address of one that has gone, which others on the network have been talking to.
func TestSetupAgain(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 2)
		settle(t, f.network.Host)
		before := testkit.Snapshot(t, f.network.Host)
		testkit.Succeed(t, mode.Setup(f.network))
		got := testkit.Snapshot(t, f.network.Host)
		testkit.Check(t, got == before, "a second Setup changed something:\n%s", difference(before, got))
		testkit.Succeed(t, rtnl.In(f.network.Host).SetSysctl("net/ipv4/ip_forward", "0"))
		testkit.Fails(t, mode.Check(f.network, f.pods[0]))
		testkit.Succeed(t, mode.Setup(f.network))
		testkit.Succeed(t, mode.Check(f.network, f.pods[0]))
		echoOnce(t, f)
		testkit.Succeed(t, mode.Delete(f.network, f.pods[1]))
		f.pods = f.pods[:1]
		f.create(t, f.newPod(t, 1))
		echoOnce(t, f)
	})
}

// settle returns when no address of ns is about to change its state.
func settle(t *testing.T, ns *netns.Namespace) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, func() (err error) {
		withHandle(t, ns, func(s nsHandle) error {
			addrs, listErr := rtnl.Dump(func() ([]netlink.Addr, error) { return s.AddrList(nil, unix.AF_INET6) })
			for _, addr := range addrs {
				if addr.Flags&unix.IFA_F_TENTATIVE != 0 {
					err = fmt.Errorf("%v is tentative", addr)
				}
			}
			return listErr
		})
		return err
	})
}

// TestAttachment compares the result of Create with the devices, their addresses and routes, and the mode's traits.
func TestAttachment(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 1)
		pod, link := f.pods[0], f.links[0]
		inside := findDevice(t, pod.Namespace, "eth0")
		if link.IfName != inside.Name || link.IfIndex != inside.Index || link.MAC.String() != inside.MAC.String() {
			t.Errorf("attachment %+v does not fit the pod's device %+v", link, inside)
		}
		testkit.Check(t, inside.MTU == DefaultMTU && link.MTU == inside.MTU,
			"MTU is %d, the attachment says %d", inside.MTU, link.MTU)
		f.fitsTraits(t)
		f.hasRoutes(t, inside)
		if mode.Traits().HostSide {
			outside := findDevice(t, f.network.Host, pod.HostIfName)
			testkit.Check(t, link.HostIfName == outside.Name && link.HostIfIndex == outside.Index &&
				link.HostMAC.String() == outside.MAC.String() && (inside.PeerIndex == outside.Index || inside.Kind == "tun"),
				"attachment %+v does not fit the host's device %+v", link, outside)
		} else if link.HostIfName != "" || link.HostIfIndex != 0 || link.HostMAC != nil {
			t.Errorf("attachment %+v has a host's device", link)
		}
		echoToHost(t, f)
		if slices.Contains(routedInLayer3(), mode.Name()) {
			testkit.Check(t, link.MAC == nil && link.HostMAC == nil && link.NodeMAC == nil,
				"attachment %+v has MAC addresses", link)
			return
		}
		withHandle(t, pod.Namespace, func(s nsHandle) error {
			neighbours, err := s.NeighList(inside.Index, netlink.FAMILY_V4)
			for _, n := range neighbours {
				if n.HardwareAddr.String() == link.NodeMAC.String() {
					return err
				}
			}
			t.Errorf("the pod's next hop is none of %v, but the attachment says %v", neighbours, link.NodeMAC)
			return err
		})
	})
}

// hasRoutes compares the addresses and routes that Create has returned with those of a pod's device.
func (f *fixture) hasRoutes(t *testing.T, inside rtnl.Device) {
	t.Helper()
	link := f.links[0]
	have := slices.DeleteFunc(inside.Addrs, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
	testkit.Check(t, slices.Equal(have, link.Prefixes), "the device has %v, the attachment %v", have, link.Prefixes)
	var want []Route
	withHandle(t, f.pods[0].Namespace, func(s nsHandle) error {
		for i, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := s.RouteList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: inside.Index}}, family)
			if err != nil {
				return err
			}
			for _, r := range routes {
				if ones, _ := r.Dst.Mask.Size(); ones == 0 {
					via, _ := netip.AddrFromSlice(r.Gw)
					want = append(want, Route{Dst: defaultPrefix(f.pods[0].Addresses[i]), Via: via.Unmap()})
				}
			}
		}
		return nil
	})
	testkit.Check(t, len(want) == 2 && slices.Equal(link.Routes, want),
		"the device has the routes %v, the attachment %v", want, link.Routes)
}

func echoToHost(t *testing.T, f *fixture) {
	t.Helper()
	reach(t, f.pods[0].Namespace, f.network.Host, f.network.Gateways[0].Addr())
}

// TestDeleteAfterNamespace deletes the link of a pod whose namespace has gone, and uses its names and addresses again.
func TestDeleteAfterNamespace(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 2)
		gone := f.pods[1]
		if stop, ok := f.stopRelay[gone.HostIfName]; ok {
			stop() // whatever has the device open keeps the namespace
		}
		testkit.Succeed(t, netns.Delete(gone.Namespace.Name()))
		testkit.Succeed(t, gone.Namespace.Close())
		gone.Namespace = nil
		for range 2 {
			testkit.Succeed(t, mode.Delete(f.network, gone))
		}
		got := describe(t, f.network.Host)
		testkit.Check(t, !strings.Contains(got, gone.Addresses[0].String()+"/32"), "the host still knows the pod: %s", got)
		f.awaitGone(t, f.links[1])
		again := f.newPod(t, 1)
		f.pods = f.pods[:1]
		f.create(t, again)
		echoOnce(t, f)
	})
}

// awaitGone returns when the kernel, which takes its time to end a namespace, has
// removed a device from the uplink that it sat on, if it did.
func (f *fixture) awaitGone(t *testing.T, link Attachment) {
	t.Helper()
	if f.mode.Traits().Needs != NeedsUplink {
		return // Delete removes it from the host at once
	}
	if f.mode.Name() != "macvlan" {
		f.awaitFree(t, link)
		return
	}
	uplink := findDevice(t, f.network.Host, uplinkName)
	testkit.Eventually(t, 5*time.Second, func() (err error) {
		withHandle(t, f.network.Host, func(s nsHandle) error {
			entries, listErr := s.NeighList(uplink.Index, unix.AF_BRIDGE)
			for _, entry := range entries {
				if entry.HardwareAddr.String() == link.MAC.String() {
					err = fmt.Errorf("%v is still on the uplink", link.MAC)
				}
			}
			return listErr
		})
		return err
	})
}

// awaitFree returns when an ipvlan device with the addresses of an earlier one can
// be created on the uplink: two at once are not possible.
func (f *fixture) awaitFree(t *testing.T, link Attachment) {
	t.Helper()
	pod := f.newPod(t, 7)
	pod.Addresses = link.Addresses
	network := f.network
	testkit.Eventually(t, 5*time.Second, func() error {
		_, err := f.mode.Create(network, pod)
		return err
	})
	testkit.Succeed(t, f.mode.Delete(network, pod))
}

// TestDeleteSparesOthers refuses to delete a device that Create never made.
func TestDeleteSparesOthers(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newHost(t, mode)
		pod := f.newPod(t, 0)
		addBridge(t, f.network.Host, pod.HostIfName)
		addBridge(t, pod.Namespace, pod.IfName)
		testkit.Fails(t, mode.Delete(f.network, pod), "not ours")
		findDevice(t, f.network.Host, pod.HostIfName)
		findDevice(t, pod.Namespace, pod.IfName)
	})
}

func addBridge(t *testing.T, ns *netns.Namespace, name string) {
	t.Helper()
	withHandle(t, ns, func(s nsHandle) error { return s.LinkAdd(&netlink.Bridge{LinkAttrs: newAttrs(name)}) })
}

func findDevice(t *testing.T, ns *netns.Namespace, name string) rtnl.Device {
	t.Helper()
	return testkit.Must(rtnl.In(ns).Device(name))(t)
}

// setupRequest is the environment variable that makes TestSetupProcess set a
// network up: the mode, and the path of the host's namespace.
const setupRequest = "PODLINK_TEST_SETUP"

// TestSetupAtOnce has a hundred goroutines and some processes set one network up, and plugs a pod in.
func TestSetupAtOnce(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		if mode.Traits().Needs == NeedsOpenVSwitch {
			return // its database lacks a lock that two Setups would share
		}
		f := newHost(t, mode)
		var group sync.WaitGroup
		for i := range 100 {
			group.Go(func() {
				if i%25 == 0 {
					setupElsewhere(t, f)
					return
				}
				err := mode.Setup(f.network)
				testkit.Check(t, err == nil, "%v", err)
			})
		}
		group.Wait()
		f.create(t, f.newPod(t, 0))
		testkit.Succeed(t, mode.Check(f.network, f.pods[0]))
		echoToHost(t, f)
	})
}

// setupElsewhere runs TestSetupProcess in its own process.
func setupElsewhere(t *testing.T, f *fixture) {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestSetupProcess$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", setupRequest, f.mode.Name(), f.network.Host.Path()))
	out, err := cmd.CombinedOutput()
	testkit.Check(t, err == nil, "%v: %s", err, out)
}

// TestSetupProcess is a test only for TestSetupAtOnce.
func TestSetupProcess(t *testing.T) {
	var name, path string
	if n, _ := fmt.Sscan(os.Getenv(setupRequest), &name, &path); n != 2 {
		return
	}
	mode := testkit.Must(Lookup(name))(t)
	host := testkit.Must(netns.Open(path))(t)
	defer host.Close()
	testkit.Succeed(t, mode.Setup(Network{
		Host: host, Uplink: uplinkName,
		Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.10.1/24"), netip.MustParsePrefix("fd00:10::1/64")},
	}))
}
