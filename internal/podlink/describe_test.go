// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// describe lists the devices and routes of namespaces, without what passes by
// itself. It is quicker than a snapshot.
func describe(t *testing.T, namespaces ...*nl.Namespace) string {
	t.Helper()
	var out strings.Builder
	for _, ns := range namespaces {
		devices, err := ns.Devices()
		if err != nil {
			t.Fatal(err)
		}
		for _, device := range devices {
			out.WriteString(ns.Name() + " " + summary(device) + "\n")
		}
		withHandle(t, ns, func(s side) error {
			for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
				routes, err := s.RouteList(nil, family)
				if err != nil {
					return err
				}
				for _, r := range routes {
					if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() {
						out.WriteString(ns.Name() + " " + r.String() + "\n")
					}
				}
			}
			return nil
		})
	}
	return out.String()
}

func summary(device nl.Device) string {
	device.RxPackets, device.TxPackets, device.RxBytes, device.TxBytes = 0, 0, 0, 0
	return strings.Join([]string{
		device.Name, device.Kind, device.MAC.String(), prefixes(device.Addrs), strconv.Itoa(device.MTU), strconv.Itoa(device.MasterIndex),
	}, " ")
}

func prefixes(list []netip.Prefix) string {
	var out []string
	for _, prefix := range list {
		if !prefix.Addr().IsLinkLocalUnicast() { // the kernel adds these when there is a carrier
			out = append(out, prefix.String())
		}
	}
	return strings.Join(out, ",")
}

// remains describes what Create and Setup, and traffic, may add to namespaces:
// devices, addresses, routes of all tables and neighbours.
func remains(t *testing.T, namespaces ...*nl.Namespace) string {
	t.Helper()
	var out strings.Builder
	for _, ns := range namespaces {
		devices, err := ns.Devices()
		if err != nil {
			t.Fatal(err)
		}
		for _, device := range devices {
			fmt.Fprintf(&out, "%s %s %v\n", ns.Name(), summary(device), device.Addrs)
		}
		out.WriteString(routes(t, ns) + neighbours(t, ns))
	}
	return out.String()
}

// routes lists the routes of all tables. Forwarding, which is a setting of the
// whole namespace and stays, gives each device anycast addresses.
func routes(t *testing.T, ns *nl.Namespace) string {
	t.Helper()
	var lines []string
	withHandle(t, ns, func(s side) error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			all, err := nl.Dump(func() ([]netlink.Route, error) {
				return s.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
			})
			if err != nil {
				return err
			}
			for _, r := range all {
				if r.Type != unix.RTN_ANYCAST {
					lines = append(lines, ns.Name()+" "+r.String()+"\n")
				}
			}
		}
		return nil
	})
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// difference lists the lines that are in one snapshot only.
func difference(before, after string) string {
	var out strings.Builder
	only := func(sign, in, other string) {
		lines := map[string]bool{}
		for line := range strings.Lines(other) {
			lines[line] = true
		}
		for line := range strings.Lines(in) {
			if !lines[line] {
				out.WriteString(sign + line)
			}
		}
	}
	only("-", before, after)
	only("+", after, before)
	return out.String()
}

// neighbours lists what a namespace knows about others, apart from multicast
// groups and its loopback device, where entries come by themselves.
func neighbours(t *testing.T, ns *nl.Namespace) string {
	t.Helper()
	var lines []string
	withHandle(t, ns, func(s side) error {
		lo, err := s.link("lo")
		if err != nil {
			return err
		}
		for _, proxied := range []bool{false, true} {
			entries, err := nl.Dump(func() ([]netlink.Neigh, error) {
				if proxied {
					return s.NeighProxyList(0, unix.AF_UNSPEC)
				}
				return s.NeighList(0, unix.AF_UNSPEC)
			})
			if err != nil {
				return err
			}
			for _, e := range entries {
				if e.LinkIndex != lo.Attrs().Index && !e.IP.IsMulticast() {
					lines = append(lines, fmt.Sprintf("%s neighbour %v at %v, device %d, proxied: %t\n",
						ns.Name(), e.IP, e.HardwareAddr, e.LinkIndex, proxied))
				}
			}
		}
		return nil
	})
	slices.Sort(lines)
	return strings.Join(lines, "")
}
