// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// advertise sends a router advertisement (RFC 4861, 4.2) from outside to the host: a default route for some seconds, and options.
func (f *fixture) advertise(lifetime uint16, options ...byte) {
	f.t.Helper()
	f.must(f.outside.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		device, err := rtnl.In(f.outside).Device("far")
		if err != nil {
			return err
		}
		to := &unix.SockaddrInet6{Addr: [16]byte{0: 0xff, 1: 2, 15: 1}, ZoneId: uint32(device.Index)}
		message := append([]byte{134, 0, 0, 0, 64, 0, byte(lifetime >> 8), byte(lifetime), 15: 0}, options...)
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255), unix.Sendto(fd, message, 0, to))
	}))
}

// learned reports whether the host has a default route of a router advertisement.
func (f *fixture) learned() bool {
	f.t.Helper()
	return strings.Contains(command(f.t, f.host, "ip -6 route show default proto ra"), "via fe80:")
}

// settings returns the host's forwarding of IPv4 and IPv6, and its acceptance of router advertisements.
func (f *fixture) settings() string {
	f.t.Helper()
	var values []string
	for _, key := range []string{podlink.IPv4Forwarding, podlink.IPv6Forwarding, "net/ipv6/conf/uplink/accept_ra"} {
		value, err := rtnl.In(f.host).Sysctl(key)
		f.must(err)
		values = append(values, value)
	}
	return strings.Join(values, " ")
}

// TestForwarding has a host that learns its default route from a router. It forwards in the families of its pods, keeps the
// route and learns it anew, and is after the last DEL as it was before the first ADD.
func TestForwarding(t *testing.T) {
	t.Parallel()
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			v4 := []byte(strings.Replace(string(network("four", mode, `,"services":"off"`)), `,[{"subnet":"fd00:106::/64"}]`, "", 1))
			both := network("net", mode, `,"services":"off","masquerade":true`)
			f.must(rtnl.In(f.host).SetSysctl(podlink.IPv4Forwarding, "0"))
			learn := func() {
				t.Helper()
				testkit.Eventually(t, 10*time.Second, func() error {
					f.advertise(1800)
					if !f.learned() {
						return errors.New("the host has no advertised route")
					}
					return nil
				})
			}
			want := func(settings, when string) {
				t.Helper()
				if got := f.settings(); got != settings {
					t.Errorf("%s: the settings are %s, want %s", when, got, settings)
				}
				if !f.learned() {
					t.Errorf("%s: the advertised route is gone", when)
				}
			}
			learn()
			want("0 0 1", "before")
			one := f.added("a", v4)
			want("1 0 1", "ADD of IPv4")
			two := f.added("b", both)
			want("1 1 2", "ADD of both")
			command(t, f.host, "ip -6 route del default proto ra")
			learn()
			f.must(f.check(two))
			f.reach(f.host, two.Namespace, two.ips()[1])
			f.must(f.del(one))
			want("1 1 2", "DEL of IPv4")
			f.must(f.del(two))
			want("0 0 1", "the last DEL")
			three := f.added("c", both)
			want("1 1 2", "ADD again")
			f.must(f.gc(both))
			want("0 0 1", "GC of the last")
			f.must(f.del(three))
			f.must(rtnl.In(f.host).SetSysctl(podlink.IPv4Forwarding, "1"))
			f.must(f.del(f.added("d", v4)))
			want("1 0 1", "DEL where the host has forwarded before")
		})
	}
}

// TestForwardingOfOthers has a host whose settings the kernel changes too as forwarding is switched on and off: devices forward
// by themselves, and redirects are not accepted. The last DEL restores them, and leaves what someone else has changed meanwhile.
func TestForwardingOfOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := network("net", "veth", `,"services":"off"`)
	const accept = "net/ipv6/conf/uplink/accept_ra"
	set := func(key, value string) {
		t.Helper()
		f.must(rtnl.In(f.host).SetSysctl(key, value))
	}
	values := func() (all []rtnl.Sysctl) {
		t.Helper()
		for _, pattern := range []string{"net/ipv4/ip_forward", "net/ipv4/conf/*/accept_redirects", "net/ipv*/conf/*/forwarding", accept} {
			some, err := rtnl.In(f.host).Sysctls(pattern)
			f.must(err)
			all = append(all, some...)
		}
		return all
	}
	set("net/ipv4/ip_forward", "0")
	set("net/ipv4/conf/all/accept_redirects", "0")
	set("net/ipv4/conf/uplink/forwarding", "1")
	set("net/ipv6/conf/uplink/forwarding", "1")
	set(accept, "1")
	before := values()
	f.must(f.del(f.added("a", config)))
	if after := values(); !slices.Equal(after, before) {
		t.Errorf("the settings were\n%v\nand are after the last DEL\n%v", before, after)
	}
	set("net/ipv6/conf/uplink/forwarding", "0")
	testkit.Eventually(t, 10*time.Second, func() error {
		// An address for an hour (RFC 4862), and no route.
		f.advertise(0, []byte{3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0, 0xfd, 0, 0, 5, 31: 0}...)
		if !strings.Contains(command(t, f.host, "ip -6 addr show dev uplink"), "fd00:5:") {
			return errors.New("the host has no advertised address")
		}
		return nil
	})
	pod := f.added("b", config)
	if got := f.settings(); got != "1 1 2" {
		t.Errorf("the settings are %s: the advertised address will expire", got)
	}
	set(accept, "0")
	f.must(f.del(pod))
	if got := f.settings(); got != "0 0 0" {
		t.Errorf("the settings are %s, and accept_ra was set to 0", got)
	}
}

// TestKeepForwarding has an agent need a host that forwards, before there are pods, while there are, and after. Once it does no longer, the host is as it was.
func TestKeepForwarding(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	four := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	f.must(rtnl.In(f.host).SetSysctl(podlink.IPv4Forwarding, "0"))
	wants := func(want, when string) {
		t.Helper()
		if got := f.settings(); got != want {
			t.Errorf("%s: the settings are %s, want %s", when, got, want)
		}
	}
	f.must(f.plugin.KeepForwarding(f.host, nil))
	wants("0 0 1", "without an address")
	f.must(f.plugin.KeepForwarding(f.host, four))
	wants("1 0 1", "with an address of IPv4")
	pod := f.added("a", network("net", "veth", `,"services":"off"`))
	wants("1 1 1", "with a pod of both families")
	f.must(f.del(pod))
	wants("1 1 1", "after the last DEL")
	f.must(f.plugin.EndForwarding(f.host))
	wants("0 0 1", "without an agent")
	pod = f.added("b", network("net", "veth", `,"services":"off"`))
	f.must(f.plugin.KeepForwarding(f.host, four))
	f.must(f.plugin.EndForwarding(f.host))
	wants("1 1 1", "without an agent and with a pod")
	f.must(f.del(pod))
	wants("0 0 1", "in the end")
}

// TestForwardingAfterFailure has an ADD that fails at once while the last pod is deleted, which leaves the host's settings to it.
func TestForwardingAfterFailure(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.must(rtnl.In(f.host).SetSysctl(podlink.IPv4Forwarding, "0"))
	last, failing := f.added("a", network("net", "veth", `,"services":"off"`)), f.pod("b", network("net", "veth", `,"services":"off"`))
	r, err := f.plugin.records().Open("net", failing.request.owner(), true)
	f.must(err)
	f.must(f.del(last))
	r.Close()
	if got := f.settings(); got != "1 1 1" {
		t.Errorf("the settings are %s while there is an ADD", got)
	}
	failing.request.Netns = "/none"
	if f.add(failing) == nil {
		t.Fatal("ADD found a network namespace")
	}
	if got := f.settings(); got != "0 0 1" {
		t.Errorf("the settings are %s after the last ADD has failed", got)
	}
}
