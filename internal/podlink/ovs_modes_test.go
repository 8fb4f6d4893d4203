// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
		{"segments", testOVSSegments},
		{"offload", testOVSOffload},
		{"MTU", testOVSMTU},
		{"database", testOVSDatabase},
		{"at once", testOVSAtOnce},
		{"repaired", testOVSRepaired},
		{"device of the bridge has gone", testOVSBridgeAnew},
		{"rows of others", testOVSSparesOthers},
	}
}

// TestOVSDatapaths tests both modes of Open vSwitch on each datapath.
func TestOVSDatapaths(t *testing.T) {
	testkit.RequireRoot(t)
	starters := map[string]starter{OVSUserSpace: StartUserSpaceOpenVSwitch, OVSKernel: StartOpenVSwitch}
	for datapath, start := range starters {
		for _, mode := range ovsModes() {
			t.Run(datapath+"/"+mode.Name(), func(t *testing.T) {
				testkit.RequireMode(t, mode.Probe())
				host := testkit.Namespace(t, "host")
				if datapath == OVSKernel {
					testkit.RequireMode(t, host.TryGeneric(ovsFamily))
				}
				s := runOpenVSwitch(t, host, start)
				network := Network{Host: host, OVSDB: s.Socket(), Gateways: []netip.Prefix{
					netip.MustParsePrefix("192.168.10.1/24"), netip.MustParsePrefix("fd00:10::1/64"),
				}}
				if err := mode.Setup(network); err != nil {
					t.Fatal(err)
				}
				if got, err := OVSDatapath(network); err != nil || got != datapath || s.Datapath() != datapath {
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

// deleteAll deletes all pods.
func (f *fixture) deleteAll(t *testing.T) {
	t.Helper()
	for _, pod := range f.pods {
		if err := f.mode.Delete(f.network, pod); err != nil {
			t.Error(err)
		}
	}
}

// testOVSReconfigured sends traffic on each path after Open vSwitch had to go
// through its ports again: others came and went, and its configuration changed.
func testOVSReconfigured(t *testing.T, f *fixture, _ string) {
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	passing := f.newPod(t, 2)
	if _, err := f.mode.Create(f.network, passing); err != nil {
		t.Fatal(err)
	}
	if err := f.mode.Delete(f.network, passing); err != nil {
		t.Fatal(err)
	}
	withSwitch(t, f.network, func(s ovsSwitch) error {
		return s.apply(ovsdbOp{"op": "update", "table": "Bridge", "where": where(), "row": map[string]any{
			"other_config": ovsdbMap{"mac-aging-time": "200", "hwaddr": f.links[0].NodeMAC.String()},
		}})
	})
	for _, pod := range f.pods {
		if err := f.mode.Check(f.network, pod); err != nil {
			t.Error(err)
		}
	}
	for _, p := range paths() {
		for _, family := range []int{4, 6} {
			t.Run(fmt.Sprintf("%s/IPv%d", p.name, family), func(t *testing.T) { testPath(t, f, p, family) })
		}
	}
}

// testOVSSegments sends datagrams that the kernel is to cut into segments, by
// which the switch must not be overstrained.
func testOVSSegments(t *testing.T, f *fixture, _ string) {
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	for _, addr := range f.pods[1].Addresses {
		server := testkit.Echo(t, f.pods[1].Namespace, "udp", netip.AddrPortFrom(addr, 0).String())
		// A user-space switch may lose packets of a flow that it learns just then.
		if _, err := testkit.RoundTrip(t, f.pods[0].Namespace, "udp", server.String(), []byte("hello")); err != nil {
			t.Fatal(err)
		}
		conn, err := testkit.Dial(f.pods[0].Namespace, "udp", server.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const size, count = 1000, 8
		raw, err := conn.(*net.UDPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
		}), err)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(bytes.Repeat([]byte("s"), size*count)); err != nil {
			t.Fatal(err)
		}
		for i := range count {
			if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, err := conn.Read(make([]byte, 1<<16))
			if err != nil || n != size {
				t.Fatalf("%v: segment %d: %d bytes, %v", addr, i, n, err)
			}
		}
	}
}

// testOVSName gives the pod's device the name that was asked for, as far as the
// datapath allows.
func testOVSName(t *testing.T, f *fixture, datapath string) {
	f.create(t, f.newPod(t, 0))
	want := "eth0"
	if f.mode.Name() == "ovs-internal" && datapath == OVSKernel {
		want = "msta"
	}
	if got := findDevice(t, f.pods[0].Namespace, "eth0"); got.Name != want || f.links[0].IfName != want {
		t.Errorf("the device is %q, the attachment says %q; it should be %q", got.Name, f.links[0].IfName, want)
	}
}

// testOVSMTU sends datagrams of the size of a large MTU, unless the datapath can't.
func testOVSMTU(t *testing.T, f *fixture, datapath string) {
	f.network.MTU = 9000
	if !f.mode.HostSide() && datapath == OVSUserSpace {
		_, err := f.mode.Create(f.network, f.newPod(t, 0))
		if err == nil || !strings.Contains(err.Error(), "MTU 9000 is more than the 1500") {
			t.Errorf("error is %v", err)
		}
		return
	}
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	for family, addr := range f.pods[1].Addresses {
		server := testkit.Echo(t, f.pods[1].Namespace, "udp", netip.AddrPortFrom(addr, 0).String())
		size := f.network.MTU - []int{20, 40}[family] - 8
		if _, err := testkit.RoundTrip(t, f.pods[0].Namespace, "udp", server.String(), make([]byte, size)); err != nil {
			t.Error(err)
		}
	}
}
