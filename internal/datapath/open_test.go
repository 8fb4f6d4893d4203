// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"mustang/internal/cgroup"
	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestOpenErrors opens roots that cannot be opened, and compares them before and after. Only root can open the others.
func TestOpenErrors(t *testing.T) {
	testkit.RequireRoot(t)
	base := testkit.BPFFS(t)
	ours := fmt.Sprintf("v%d", objects.LayoutVersion)
	others := []string{fmt.Sprintf("v%d", objects.LayoutVersion-1), fmt.Sprintf("v%d", objects.LayoutVersion+1)}
	for _, other := range others {
		succeed(t, os.MkdirAll(filepath.Join(base, other, other, "maps"), 0o700))
	}
	for name, open := range map[string]func(Options) (*Datapath, error){
		"Open":         func(o Options) (*Datapath, error) { return Open(t.Context(), o) },
		"OpenExisting": OpenExisting,
	} {
		t.Run(name, func(t *testing.T) {
			elsewhere := filepath.Join(t.TempDir(), "root")
			err := errOf(open(Options{Root: elsewhere}))
			failsWith(t, err, objects.ErrNoBPFFS, "no bpffs")
			testkit.Fails(t, err, elsewhere, "mount -t bpf")
			failsWith(t, errOf(os.Stat(elsewhere)), os.ErrNotExist, "no bpffs: something was made there")
			for _, other := range others {
				err := errOf(open(Options{Root: filepath.Join(base, other)}))
				layout := failsAs[*objects.LayoutError](t, err, "layout %s", other)
				testkit.Fails(t, err, other, ours, "mustang reset")
				failIf(t, layout.Found != other || layout.Want != ours || strings.Contains(err.Error(), "\n"), "%+v", layout)
				failsWith(t, errOf(os.Stat(filepath.Join(base, other, ours))), os.ErrNotExist,
					"layout %s: something was made there", other)
			}
			succeed(t, syscall.Seteuid(65534))
			err = errOf(open(Options{Root: filepath.Join(base, "mine")}))
			succeed(t, syscall.Seteuid(0))
			failsWith(t, err, objects.ErrNotRoot, "not root")
		})
	}
	for _, other := range others { // as the error says
		noError(t, objects.Remove(t.Context(), filepath.Join(base, other)))
		d := openSized(t, Options{Root: filepath.Join(base, other)})
		for _, dir := range []string{d.objects.Root(), pins(d), pins(d, "maps"), pins(d, "progs"), pins(d, "links")} {
			equal(t, must(os.Stat(dir))(t).Mode().Perm(), 0o700, "the mode of %s", dir)
		}
	}
	failsWith(t, errOf(OpenExisting(Options{Root: filepath.Join(base, "none")})), os.ErrNotExist, "nothing there")
	failIf(t, objects.Remove(t.Context(), t.TempDir()) == nil, "Remove took a directory on another file system")
}

// TestUnsupported expects the feature and the version in the message.
func TestUnsupported(t *testing.T) {
	err := error(&objects.UnsupportedError{Feature: "tcx", Kernel: "6.6", Err: syscall.EINVAL})
	testkit.Fails(t, err, "tcx", "6.6")
	failsWith(t, err, syscall.EINVAL)
	err = &objects.UnsupportedError{Feature: "netkit", Kernel: "6.7", Option: "CONFIG_NETKIT", Err: syscall.EINVAL}
	failIf(t, err.Error() != "this kernel is built without CONFIG_NETKIT", "error %v", err)
}

// TestCounterNames compares the names in Go with the type information.
func TestCounterNames(t *testing.T) {
	spec := must(ebpf.LoadCollectionSpec("objects/tc_bpfel.o"))(t)
	for enum, names := range map[string][][2]string{"metric": flows.Metrics(), "drop_reason": flows.Drops()} {
		var values *btf.Enum
		succeed(t, spec.Types.TypeByName(enum, &values))
		prefix, _, _ := strings.Cut(enum, "_")
		names = append(names, [2]string{"count", "unused"})
		testkit.Require(t, len(values.Values) == len(names),
			"enum %s has %d values, and Go %d names", enum, len(values.Values), len(names))
		for i, value := range values.Values {
			want := strings.ToUpper(prefix + "_" + names[i][0])
			failIf(t, value.Value != uint64(i) || value.Name != want || i > 0 && names[i][1] == "",
				"enum %s: value %d is %s, want %s", enum, value.Value, value.Name, want)
		}
	}
}

// TestTwoHosts adds pods and uplinks of a second host, whose devices have the same indexes as the first one's.
func TestTwoHosts(t *testing.T) {
	first, second, d := routed(t), routed(t), openTest(t)
	first.attachBoth(t, d)
	second.run(t, "-n PODA addr add 192.168.20.10/32 dev eth0") // no address is in the way
	second.run(t, "-n PODA addr del "+podA4+"/32 dev eth0")
	second.run(t, "-n PODA addr del "+podA6+"/128 dev eth0")
	second.wire(t)

	put := func(n network) error { return errOf2(d.Endpoints().Put(t.Context(), n.attachment(0))) }
	wantConflict(t, put(second), first.host.Name(), second.pods[0].Name(), d.objects.Root())
	wantConflict(t, errOf(d.Uplinks().Put(t.Context(), second.host, "wire")), first.host.Name(), second.host.Name())
	wantNotFound(t, d.Endpoints().DeleteDevice(t.Context(), second.attachment(0)))
	wantEndpoints(t, d, podA4, podA6, podB4, podB6)
	wantLinks(t, d, 4)

	// One pod of the first host keeps its rows and programs; they are deleted with the next host's first.
	first.run(t, "-n HOST link del va")
	wantConflict(t, put(second), first.host.Name())
	first.run(t, "-n HOST link del vb")
	wantPut(t, d, second.attachment(0), Added)
	wantEndpoints(t, d, "192.168.20.10")
	wantLinks(t, d, 2)
	noError(t, errOf(d.Uplinks().Put(t.Context(), second.host, "wire")))
	failsWith(t, put(first), os.ErrNotExist, "a pod without its device")
}

// TestUplinkOfOtherHost keeps a host by its uplink alone.
func TestUplinkOfOtherHost(t *testing.T) {
	first, second, d := routed(t), routed(t), openTest(t)
	first.wire(t)
	must(d.Uplinks().Put(t.Context(), first.host, "wire"))(t)
	wantConflict(t, errOf2(d.Endpoints().Put(t.Context(), second.attachment(0))), first.host.Name())
	first.run(t, "-n HOST link del wire")
	second.attachBoth(t, d)
	wantLinks(t, d, 4)
}

// TestSameIndexOnOtherHost names a VM by a device of another host that has the same index as the endpoint's.
func TestSameIndexOnOtherHost(t *testing.T) {
	testkit.RequireTool(t, "ip")
	d := openTest(t)
	var specs []EndpointSpec
	for range 2 {
		n := newNetwork(t)
		n.run(t, "-n HOST tuntap add dev tap0 mode tap")
		specs = append(specs, vmSpec(n))
	}
	must2(d.Endpoints().Put(t.Context(), specs[0]))(t)
	failsAs[*DeviationError](t, d.Endpoints().Check(t.Context(), specs[1]), "check on the other host")
	wantNotFound(t, d.Endpoints().DeleteDevice(t.Context(), specs[1]))
	noError(t, d.Endpoints().Check(t.Context(), specs[0]))
	noError(t, d.Endpoints().DeleteDevice(t.Context(), specs[0]))
}

func vmSpec(n network) EndpointSpec {
	return EndpointSpec{
		Host: n.host, HostIfName: "tap0", MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1},
		Addresses: []netip.Addr{netip.MustParseAddr(podA4)},
	}
}

// TestCheckHost removes the requirements of a host's socket translation.
func TestCheckHost(t *testing.T) {
	d, host, path := openTest(t), testkit.Namespace(t, "host"), testkit.Cgroup(t)
	want := func(words ...string) {
		t.Helper()
		err := d.Sockets().Check(service.CLI, host, path)
		if len(words) == 0 {
			succeed(t, err, "CheckHost")
			return
		}
		failsAs[*DeviationError](t, err, "CheckHost")
		testkit.Fails(t, err, words...)
	}
	add := func() {
		t.Helper()
		must(d.Sockets().Attach(t.Context(), path))(t)
		must(d.Sockets().Put(t.Context(), service.CLI, host, HostScope))(t)
	}
	want("network namespace is not registered", "lacks the socket programs getpeername4", "connect6")
	add()
	want()
	must(d.Sockets().Put(t.Context(), service.CLI, host, PodScope))(t)
	must(d.Sockets().Put(t.Context(), service.CNI, host, HostScope))(t) // not for this owner
	want("network namespace is not registered")
	add()
	c := must(cgroup.Open(path))(t)
	defer c.Close()
	pinned := must(link.LoadPinnedLink(pins(d, "links", objects.Link{Hook: objects.Hook{Point: objects.AttachCgroup,
		Program: "connect4"}, ID: c.ID}.String()), nil))(t)
	defer pinned.Close()
	succeed(t, pinned.Detach())
	want("lacks the socket programs connect4")
	add()
	want()
}

// TestSweep sweeps pods that are gone, two devices of one pod among them, and leaves others.
func TestSweep(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	stays, goes := testkit.Namespace(t, "stays"), testkit.Namespace(t, "goes")
	for _, ns := range []*netns.Namespace{stays, goes} {
		must(d.Sockets().Put(t.Context(), service.CNI, ns, PodScope))(t)
		must(d.Sockets().Put(t.Context(), service.Agent, ns, PodScope))(t) // has a sweep of its own
	}
	gone := must(goes.Cookie())(t)
	succeed(t, errors.Join(netns.Delete(goes.Name()), goes.Close()))
	second := EndpointSpec{Namespace: n.pods[0], IfName: "second", Host: n.host}
	n.run(t, "-n HOST link add more type veth peer name second netns PODA")
	n.run(t, "-n PODA addr add 192.168.10.99/32 dev second")
	must2(d.Endpoints().Put(t.Context(), second))(t)
	n.run(t, "-n PODA link del second")
	want := func(keep func(uint64) bool, endpoints, pods int) {
		t.Helper()
		succeed(t, errors.Join(d.Endpoints().Sweep(t.Context(), keep), d.Sockets().Sweep(t.Context(), service.CNI, keep)))
		ids := make(map[uint32]bool)
		for _, e := range must(d.Endpoints().List(t.Context()))(t) {
			ids[e.ID] = true
		}
		if sockets, err := d.Sockets().List(t.Context()); err != nil || len(ids) != endpoints || len(sockets) != pods+2 {
			t.Errorf("left are %d endpoints and pods %v, %v; want %d and %d", len(ids), sockets, err, endpoints, pods)
		}
	}
	want(func(uint64) bool { return true }, 3, 2)
	want(func(cookie uint64) bool { return cookie == gone }, 2, 2)
	want(none, 2, 1)
	cookie := must(n.pods[0].Cookie())(t)
	_, ok, err := d.objects.Namespaces.Get(cookie)
	testkit.Check(t, err == nil && ok, "a pod whose second device went: %v, %v", ok, err)
	n.run(t, "-n PODA link del eth0")
	want(none, 1, 1)
	_, ok, err = d.objects.Namespaces.Get(cookie)
	testkit.Check(t, err == nil && !ok, "a pod without devices is known still")
}

// TestShared opens a shared datapath again: it is the same, with this build's programs, until it is removed, which
// leaves no device its program.
func TestShared(t *testing.T) {
	n := routed(t)
	o := Options{Root: filepath.Join(testkit.BPFFS(t), "root")}
	var s Shared
	failsWith(t, errOf(s.OpenExisting(o)), os.ErrNotExist, "OpenExisting without")
	device := must(rtnl.In(n.host).Device("vb"))(t).Index
	var before *Datapath
	for _, name := range []string{"first", "removed"} {
		d, err := s.Open(t.Context(), o)
		succeed(t, err, "%s", name)
		testkit.Require(t, d != before, "%s: what was removed is open still", name)
		must(d.Guards().Put(t.Context(), n.attachment(1)))(t)
		want := ofAnotherBuild(t, d, "progs")
		equal(t, must(s.Open(t.Context(), o))(t), d, "%s: again", name)
		got := programPins(t, d, "progs")
		testkit.Check(t, slices.Equal(got, want), "%s: programs %v, want %v", name, got, want)
		equal(t, must(s.OpenExisting(o))(t), d, "%s: OpenExisting", name)
		for range 2 {
			succeed(t, Remove(t.Context(), o.Root))
			equal(t, alone{n, d, device}.program(t), 0, "%s: program", name)
		}
		failsWith(t, errOf(os.Stat(o.Root)), os.ErrNotExist, "the root")
		before = d
		failsWith(t, errOf(s.OpenExisting(o)), os.ErrNotExist, "%s: OpenExisting of what was removed", name)
	}
}
