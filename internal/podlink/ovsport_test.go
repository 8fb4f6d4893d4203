// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/testkit"
)

// datapathTest is a test on one Open vSwitch, whose host is set up.
type datapathTest struct {
	name string
	test func(t *testing.T, f *fixture, datapath string)
}

// datapathTests are in this order: the last ones leave the bridge in pieces.
func datapathTests() []datapathTest {
	return []datapathTest{
		{"name", testOVSName},
		{"answers", testOVSAnswers},
		{"reconfigured", testOVSReconfigured},
		{"MTU", testOVSMTU},
		{"database", testOVSDatabase},
		{"both the pod's and the host's", testOVSAtOnce},
		{"rows of others", testOVSSparesOthers},
		{"device of the bridge has gone", testOVSBridgeGone},
	}
}

// TestOVSDatapaths tests both modes of Open vSwitch on each datapath.
func TestOVSDatapaths(t *testing.T) {
	testkit.RequireRoot(t)
	for _, datapath := range []string{ovs.UserSpace, ovs.Kernel} {
		for _, mode := range ovsModes() {
			t.Run(datapath+"/"+mode.Name(), func(t *testing.T) {
				testkit.RequireMode(t, mode.Probe())
				host := testkit.Namespace(t, "host")
				if datapath == ovs.Kernel {
					testkit.RequireMode(t, ovs.CheckKernel(host))
				}
				s := runOpenVSwitch(t, host, datapath)
				network := Network{Host: host, OVSDB: s.Socket(), Gateways: []netip.Prefix{
					netip.MustParsePrefix("192.168.10.1/24"), netip.MustParsePrefix("fd00:10::1/64"),
				}}
				testkit.Succeed(t, mode.Setup(network))
				if got, err := network.ovsDatapath(); err != nil || got != datapath || s.Datapath() != datapath {
					t.Fatalf("the datapath is %q, %v; it should be %q, and Open vSwitch says %q", got, err, datapath, s.Datapath())
				}
				for _, row := range datapathTests() {
					t.Run(row.name, func(t *testing.T) {
						f := &fixture{mode: mode, network: network}
						defer f.deleteAll(t)
						row.test(t, f, datapath)
					})
				}
			})
		}
	}
}

func (f *fixture) deleteAll(t *testing.T) {
	t.Helper()
	for _, pod := range f.pods {
		err := f.mode.Delete(f.network, pod)
		testkit.Check(t, err == nil, "%v", err)
	}
}

// testOVSReconfigured sends traffic on each path after Open vSwitch had to go
// through its ports again: others came and went, and its configuration changed.
func testOVSReconfigured(t *testing.T, f *fixture, _ string) {
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	passing := f.newPod(t, 2)
	testkit.Must(f.mode.Create(f.network, passing))(t)
	testkit.Succeed(t, f.mode.Delete(f.network, passing))
	vsctl(t, f.network, "set", "Bridge", f.network.bridge(), "other_config:mac-aging-time=200")
	for _, pod := range f.pods {
		testkit.Succeed(t, f.mode.Check(f.network, pod))
	}
	for _, p := range paths() {
		for _, family := range []int{4, 6} {
			t.Run(fmt.Sprintf("%s/IPv%d", p.name, family), func(t *testing.T) { testPath(t, f, p, family) })
		}
	}
}

// testOVSName gives the pod's device the name that was asked for, as far as the datapath allows.
func testOVSName(t *testing.T, f *fixture, datapath string) {
	f.create(t, f.newPod(t, 0))
	want := "eth0"
	if f.mode.Name() == "ovs-internal" && datapath == ovs.Kernel {
		want = "msta"
	}
	if got := findDevice(t, f.pods[0].Namespace, "eth0"); got.Name != want || f.links[0].IfName != want {
		t.Errorf("the device is %q, the attachment says %q; it should be %q", got.Name, f.links[0].IfName, want)
	}
}

// testOVSMTU sends datagrams of the size of a large MTU, unless the datapath can't.
func testOVSMTU(t *testing.T, f *fixture, datapath string) {
	f.network.MTU = 9000
	if !f.mode.Traits().HostSide && datapath == ovs.UserSpace {
		_, err := f.mode.Create(f.network, f.newPod(t, 0))
		testkit.Fails(t, err, "MTU 9000 is more than the 1500")
		return
	}
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	for family, addr := range f.pods[1].Addresses {
		server := testkit.Echo(t, f.pods[1].Namespace, "udp", netip.AddrPortFrom(addr, 0).String())
		size := f.network.MTU - []int{20, 40}[family] - 8
		testkit.Must(testkit.RoundTrip(t, f.pods[0].Namespace, "udp", server.String(), make([]byte, size)))(t)
	}
}

// testOVSDatabase fails to create a pod half-way, loses a pod with its namespace and deletes another: none leaves
// rows in the database.
func testOVSDatabase(t *testing.T, f *fixture, _ string) {
	rows := func() (count int) {
		for _, table := range []string{"Bridge", "Port", "Interface"} {
			count += strings.Count(vsctl(t, f.network, "--no-headings", "--format=csv", "--columns=name", "list", table), "\n")
		}
		return count
	}
	empty := rows()
	f.create(t, f.newPod(t, 0))
	one := rows()
	testkit.Check(t, one == empty+2, "a pod has %d rows", one-empty)
	again := f.newPod(t, 1)
	again.HostIfName = f.pods[0].HostIfName
	_, err := f.mode.Create(f.network, again)
	testkit.Check(t, errors.Is(err, fs.ErrExist), "error is %v", err)
	routed := f.newPod(t, 1)
	withLink(t, routed.Namespace, "lo", func(in nsHandle, lo netlink.Link) error {
		return in.addRoute(lo, Route{Dst: netip.MustParsePrefix("0.0.0.0/0")})
	})
	_, err = f.mode.Create(f.network, routed)
	testkit.Check(t, err != nil, "a pod with a default route is no error")
	got := rows()
	testkit.Check(t, got == one, "a failure left %d rows", got-one)
	testkit.Succeed(t, netns.Delete(f.pods[0].Namespace.Name()))
	f.pods[0].Namespace = nil
	testkit.Succeed(t, f.mode.Delete(f.network, f.pods[0]))
	got = rows()
	testkit.Check(t, got == empty, "a pod that is gone left %d rows", got-empty)
}

func testOVSSparesOthers(t *testing.T, f *fixture, _ string) {
	pod := f.newPod(t, 0)
	vsctl(t, f.network, "add-port", f.network.bridge(), pod.HostIfName, "--", "set", "Interface", pod.HostIfName,
		"type=internal")
	vsctl(t, f.network, "clear", "Bridge", f.network.bridge(), "external_ids")
	for _, err := range []error{
		f.mode.Delete(f.network, pod), f.mode.Teardown(f.network),
	} {
		testkit.Fails(t, err, "not ours")
	}
	findDevice(t, f.network.Host, f.network.bridge())
	// A bridge of someone else's is one to plug pods into.
	testkit.Succeed(t, f.mode.Setup(f.network))
}

func testOVSAtOnce(t *testing.T, f *fixture, _ string) {
	const count = 4
	for i := range count {
		f.pods = append(f.pods, f.newPod(t, i))
	}
	all := func(do func(pod Pod) error) {
		t.Helper()
		errs := make(chan error, count)
		for _, pod := range f.pods {
			go func() { errs <- do(pod) }()
		}
		for range count {
			testkit.Succeed(t, <-errs)
		}
	}
	all(func(pod Pod) error { _, err := f.mode.Create(f.network, pod); return err })
	all(func(pod Pod) error { return f.mode.Check(f.network, pod) })
	// In the user-space datapath, ovs-vswitchd passes no packets while it looks for all
	// the devices that have been moved. In an emulated guest that takes seconds.
	server := testkit.Echo(t, f.pods[count-1].Namespace, "tcp", netip.AddrPortFrom(f.pods[count-1].Addresses[0],
		0).String())
	testkit.Eventually(t, time.Minute, func() error {
		_, err := testkit.RoundTrip(t, f.pods[0].Namespace, "tcp", server.String(), []byte("hello"))
		return err
	})
	all(func(pod Pod) error { return f.mode.Delete(f.network, pod) })
}

// testOVSBridgeGone has Setup fail where the device of the bridge has gone, or is another.
func testOVSBridgeGone(t *testing.T, f *fixture, datapath string) {
	if datapath != ovs.UserSpace {
		return // the kernel does not let anyone delete it
	}
	inHost(DefaultBridge, unlink)(t, f)
	err := f.mode.Setup(f.network)
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "error is %v", err)
	addBridge(t, f.network.Host, DefaultBridge)
	err = f.mode.Setup(f.network)
	testkit.Check(t, errors.Is(err, fs.ErrExist) && strings.Contains(err.Error(), "not the bridge of Open vSwitch"),
		"error is %v", err)
	inHost(DefaultBridge, unlink)(t, f)
}

func wantDeviation(t *testing.T, err error, says string) {
	t.Helper()
	var deviation *DeviationError
	testkit.Check(t, errors.As(err, &deviation) && strings.Contains(err.Error(), says),
		"Check says %v, wanted: %s", err, says)
}
