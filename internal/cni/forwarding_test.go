// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
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
	return strings.Contains(testkit.Command(f.t, f.host, "ip -6 route show default proto ra"), "via fe80:")
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
// route and learns it anew, and goes on to forward after the last DEL.
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
			testkit.Command(t, f.host, "ip -6 route del default proto ra")
			learn()
			f.must(f.check(two))
			f.reach(f.host, two.Namespace, two.ips()[1])
			f.must(f.del(one))
			want("1 1 2", "DEL of IPv4")
			f.must(f.del(two))
			want("1 1 2", "the last DEL")
		})
	}
}

// TestForwardingKeepsAddresses has a host with an advertised address, and no route: it goes on to take advertisements.
func TestForwardingKeepsAddresses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	testkit.Eventually(t, 10*time.Second, func() error {
		// An address for an hour (RFC 4862), and no route.
		f.advertise(0, []byte{3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0, 0xfd, 0, 0, 5, 31: 0}...)
		if !strings.Contains(testkit.Command(t, f.host, "ip -6 addr show dev uplink"), "fd00:5:") {
			return errors.New("the host has no advertised address")
		}
		return nil
	})
	pod := f.added("a", network("net", "veth", `,"services":"off"`))
	if got := f.settings(); got != "1 1 2" {
		t.Errorf("the settings are %s: the advertised address will expire", got)
	}
	f.must(f.del(pod))
}
