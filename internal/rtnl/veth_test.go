// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func TestAddWire(t *testing.T) {
	testkit.RequireRoot(t)
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	testkit.Succeed(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: "left"}, rtnl.VethEnd{Namespace: b,
		Name: "right"}, 1400))
	left := testkit.Must(rtnl.In(a).Device("left"))(t)
	right := testkit.Must(rtnl.In(b).Device("right"))(t)
	for _, d := range []rtnl.Device{left, right} {
		testkit.Check(t, d.Up && d.MTU == 1400 && d.Kind == "veth", "%+v: want a veth with MTU 1400 that is up", d)
	}
	testkit.Check(t, left.PeerIndex == right.Index, "peer of left is %d, want %d", left.PeerIndex, right.Index)
	before := names(t, b) // their addresses still settle
	testkit.Fails(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: b, Name: "other"}, rtnl.VethEnd{Namespace: a,
		Name: "left"}, 1400))
	after := names(t, b)
	testkit.Check(t, slices.Equal(after, before), "a wire that failed left %q, before there were %q", after, before)
}

func names(t *testing.T, ns *netns.Namespace) (names []string) {
	t.Helper()
	devices := testkit.Must(rtnl.In(ns).Devices())(t)
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names
}

func TestOffloads(t *testing.T) {
	testkit.RequireRoot(t)
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	testkit.Succeed(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: "left"}, rtnl.VethEnd{Namespace: b,
		Name: "right"}, 1500))
	on := testkit.Must(rtnl.In(a).Offloads("left"))(t)
	for _, name := range []string{"tso", "gso", "tx-checksum"} {
		testkit.Check(t, on[name], "%s of a new veth: %v, want on", name, on)
	}
	_, err := rtnl.In(a).Offloads("nope")
	testkit.Check(t, err != nil, "offloads of a device that is not there")
}

// deleters are both ways to delete a device.
var deleters = map[string]func(*netns.Namespace, int) error{
	"child": rtnl.DeleteInChild,
	"in place": func(ns *netns.Namespace, index int) error {
		handle, err := rtnl.In(ns).Handle()
		if err != nil {
			return err
		}
		defer handle.Close()
		return rtnl.DeleteLink(handle, index)
	},
}

// TestDevice deletes pairs of devices and creates others with the same names at once, in
// parallel: a name that is not free yet is an error.
func TestDevice(t *testing.T) {
	for name, deleter := range deleters {
		t.Run(name, func(t *testing.T) {
			a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
			var group sync.WaitGroup
			for i := range 4 {
				group.Go(func() {
					ends := [2]rtnl.VethEnd{{Namespace: a, Name: fmt.Sprint("near", i)}, {Namespace: b, Name: fmt.Sprint("far", i)}}
					for range 5 {
						err := deletePair(deleter, ends)
						testkit.Check(t, err == nil, "%v", err)
					}
				})
			}
			group.Wait()
		})
	}
}

func deletePair(deleter func(*netns.Namespace, int) error, ends [2]rtnl.VethEnd) error {
	if err := rtnl.AddVeth(ends[0], ends[1], 1500); err != nil {
		return err
	}
	device, err := rtnl.In(ends[0].Namespace).Device(ends[0].Name)
	if err != nil {
		return err
	}
	for range 2 {
		if err := deleter(ends[0].Namespace, device.Index); err != nil {
			return err
		}
	}
	if _, err := rtnl.In(ends[1].Namespace).Device(ends[1].Name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the peer %s still exists: %w", ends[1].Name, err)
	}
	return nil
}

// TestDeviceRefused deletes the loopback device, which the kernel refuses.
func TestDeviceRefused(t *testing.T) {
	ns := testkit.Namespace(t, "a")
	for name, deleter := range deleters {
		err := deleter(ns, 1)
		testkit.Check(t, errors.Is(err, unix.EOPNOTSUPP), "%s: %v", name, err)
	}
}

// TestTry tries devices and queues, and leaves none.
func TestTry(t *testing.T) {
	a := testkit.Namespace(t, "a")
	for _, kind := range []string{"vxlan", "bridge", "ifb"} {
		testkit.Succeed(t, rtnl.In(a).TryDevice(kind))
	}
	for _, kind := range []string{"tbf", "pfifo"} {
		testkit.Succeed(t, rtnl.In(a).TryQdisc(kind))
	}
	testkit.Succeed(t, errors.Join(rtnl.In(a).TryNFTables(), rtnl.In(a).TryConntrack()))
	testkit.Succeed(t, rtnl.In(a).TryGenericFamily("nlctrl"))
	for name, err := range map[string]error{
		"device": rtnl.In(a).TryDevice("no-such-kind"), "qdisc": rtnl.In(a).TryQdisc("no-such-kind"), "family": rtnl.In(
			a).TryGenericFamily("no-such-family"),
	} {
		testkit.Check(t, errors.Is(err, errors.ErrUnsupported), "trying a %s that does not exist: %v", name, err)
	}
	links, err := handle(t, a).LinkList()
	testkit.Check(t, err == nil && len(links) == 1, "left: %v, %v", links, err)
	qdiscs, err := handle(t, a).QdiscList(links[0])
	testkit.Check(t, err == nil && len(qdiscs) == 1 && qdiscs[0].Type() == "noqueue", "left: %v, %v", qdiscs, err)
}

// TestSetSysctls sets several sysctls; one is missing.
func TestSetSysctls(t *testing.T) {
	ns := testkit.Namespace(t, "a")
	sysctls := []rtnl.Sysctl{
		{Key: "net/ipv4/ip_forward", Value: "1"},
		{Key: "net/ipv4/none", Value: "1"},
		{Key: "net/ipv4/conf/lo/arp_notify", Value: "1"},
	}
	err := rtnl.In(ns).SetSysctls(sysctls, nil)
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "error is %v", err)
	for range 2 {
		err := rtnl.In(ns).SetSysctls(sysctls, func(s rtnl.Sysctl, err error) bool {
			return s.Key == "net/ipv4/none" && errors.Is(err, fs.ErrNotExist)
		})
		testkit.Succeed(t, err)
	}
	for _, s := range []rtnl.Sysctl{sysctls[0], sysctls[2]} {
		value, err := rtnl.In(ns).Sysctl(s.Key)
		testkit.Check(t, err == nil && value == s.Value, "%s is %q, %v", s.Key, value, err)
	}
	if err := rtnl.In(ns).SetSysctls([]rtnl.Sysctl{{Key: "net/ipv4/ip_forward", Value: "x"}}, nil); !errors.Is(err,
		unix.EINVAL) {
		t.Errorf("error is %v", err)
	}
	testkit.Fails(t, rtnl.In(ns).SetSysctls([]rtnl.Sysctl{{Key: "kernel/panic", Value: "1"}}, nil))
}
