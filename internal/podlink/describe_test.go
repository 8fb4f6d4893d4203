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
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// describe lists the devices and routes of namespaces, without transient ones. It is quicker than a snapshot.
func describe(t *testing.T, namespaces ...*netns.Namespace) string {
	t.Helper()
	var out strings.Builder
	for _, ns := range namespaces {
		devices := testkit.Must(rtnl.In(ns).Devices())(t)
		for _, device := range devices {
			out.WriteString(ns.Name() + " " + summary(device) + "\n")
		}
		withHandle(t, ns, func(s nsHandle) error {
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

func summary(device rtnl.Device) string {
	device.RxPackets, device.TxPackets, device.RxBytes, device.TxBytes = 0, 0, 0, 0
	return strings.Join([]string{
		device.Name, device.Kind, device.MAC.String(), prefixes(device.Addrs), strconv.Itoa(device.MTU),
		strconv.Itoa(device.MasterIndex),
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
func remains(t *testing.T, namespaces ...*netns.Namespace) string {
	t.Helper()
	var out strings.Builder
	for _, ns := range namespaces {
		devices := testkit.Must(rtnl.In(ns).Devices())(t)
		for _, device := range devices {
			fmt.Fprintf(&out, "%s %s %v\n", ns.Name(), summary(device), device.Addrs)
		}
		out.WriteString(routes(t, ns) + neighbours(t, ns))
	}
	return out.String()
}

// routes lists the routes of all tables. Forwarding, which is a setting of the
// whole namespace and stays, gives each device anycast addresses.
func routes(t *testing.T, ns *netns.Namespace) string {
	t.Helper()
	var lines []string
	withHandle(t, ns, func(s nsHandle) error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			all, err := rtnl.Dump(func() ([]netlink.Route, error) {
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

func nothingLeft(t *testing.T, before, after string) {
	t.Helper()
	testkit.Check(t, after == before, "left behind:\n%s", difference(before, after))
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

// neighbours lists a namespace's neighbour entries, apart from multicast groups and its loopback device, where the
// kernel adds entries.
func neighbours(t *testing.T, ns *netns.Namespace) string {
	t.Helper()
	var lines []string
	withHandle(t, ns, func(s nsHandle) error {
		lo, err := s.link("lo")
		if err != nil {
			return err
		}
		for _, proxied := range []bool{false, true} {
			entries, err := rtnl.Dump(func() ([]netlink.Neigh, error) {
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

// replaceWithBridge deletes a device of the host, and gives its name to another.
func replaceWithBridge(name string) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) {
		inHost(name, unlink)(t, f)
		addBridge(t, f.network.Host, name)
	}
}

// rewire deletes a pod's link, and makes another pair of each of its names.
func rewire(t *testing.T, f *fixture) {
	inHost("msta", unlink)(t, f)
	for _, ns := range []*netns.Namespace{f.network.Host, f.pods[0].Namespace} {
		name := map[bool]string{true: "msta", false: "eth0"}[ns == f.network.Host]
		withHandle(t, ns, func(s nsHandle) error {
			if err := s.LinkAdd(&netlink.Veth{LinkAttrs: newAttrs(name), PeerName: "other", PeerTxQLen: -1}); err != nil {
				return err
			}
			// So that the indexes do not fit by accident.
			return s.LinkAdd(&netlink.Bridge{LinkAttrs: newAttrs("between" + name)})
		})
	}
}

// changeIPVLAN changes the mode or flag, which all devices on an uplink share.
func changeIPVLAN(change func(*netlink.IPVlan)) func(nsHandle, netlink.Link) error {
	return func(s nsHandle, link netlink.Link) error {
		have := link.(*netlink.IPVlan)
		device := &netlink.IPVlan{LinkAttrs: newAttrs(have.Name), Mode: have.Mode, Flag: have.Flag}
		device.ParentIndex = have.ParentIndex
		change(device)
		return s.LinkModify(device)
	}
}

// dropInNetkit sets one of a pair's policies to drop all.
func dropInNetkit(attribute int) func(*testing.T, *fixture) {
	return inHost("msta", func(s nsHandle, link netlink.Link) error {
		return changeLink(s.ns, link, vnl.NewRtAttr(attribute, vnl.Uint32Attr(uint32(netlink.NETKIT_POLICY_BLACKHOLE))))
	})
}

// defaultRoute is the default route of a next hop's family through it.
func defaultRoute(hop netip.Addr) Route { return Route{Dst: defaultPrefix(hop), Via: hop} }
