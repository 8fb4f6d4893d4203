// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

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
	for _, ns := range []*nl.Namespace{f.network.Host, f.pods[0].Namespace} {
		name := map[bool]string{true: "msta", false: "eth0"}[ns == f.network.Host]
		withHandle(t, ns, func(s side) error {
			if err := s.LinkAdd(&netlink.Veth{LinkAttrs: attrs(name), PeerName: "other", PeerTxQLen: -1}); err != nil {
				return err
			}
			// So that the indexes do not fit by accident.
			return s.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("between" + name)})
		})
	}
}

// callNetfilter switches the netfilter call on for all bridges of the host.
func callNetfilter(t *testing.T, f *fixture) {
	if !hasNetfilterCall(f.network.Host) {
		testkit.Skip(t, "needs the kernel module br_netfilter")
	}
	setSysctl(true, "net/bridge/bridge-nf-call-ip6tables", "1")(t, f)
}

// changeIPVLAN changes the mode or flag, which all devices on an uplink share.
func changeIPVLAN(change func(*netlink.IPVlan)) func(side, netlink.Link) error {
	return func(s side, link netlink.Link) error {
		have := link.(*netlink.IPVlan)
		device := &netlink.IPVlan{LinkAttrs: attrs(have.Name), Mode: have.Mode, Flag: have.Flag}
		device.ParentIndex = have.ParentIndex
		change(device)
		return s.LinkModify(device)
	}
}

// dropInNetkit sets one of a pair's policies to drop all.
func dropInNetkit(attribute int) func(*testing.T, *fixture) {
	return inHost("msta", func(s side, link netlink.Link) error {
		request := vnl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		info := vnl.NewIfInfomsg(unix.AF_UNSPEC)
		info.Index = int32(link.Attrs().Index)
		request.AddData(info)
		linkInfo := vnl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		linkInfo.AddRtAttr(vnl.IFLA_INFO_KIND, vnl.NonZeroTerminated("netkit"))
		data := linkInfo.AddRtAttr(vnl.IFLA_INFO_DATA, nil)
		data.AddRtAttr(attribute, vnl.Uint32Attr(uint32(netlink.NETKIT_POLICY_BLACKHOLE)))
		request.AddData(linkInfo)
		return s.ns.Do(func() error {
			_, err := request.Execute(unix.NETLINK_ROUTE, 0)
			return err
		})
	})
}

// loseDevice lets the pod's TUN or TAP device end with the program that has it
// open, which is the test.
func loseDevice(t *testing.T, f *fixture) {
	f.stopRelay[f.pods[0].HostIfName]()
	err := f.pods[0].Namespace.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		request, err := unix.NewIfreq(f.pods[0].IfName)
		if err != nil {
			return err
		}
		mode := uint16(unix.IFF_TUN)
		if f.mode.Name() == "tap" {
			mode = unix.IFF_TAP
		}
		request.SetUint16(mode | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return err
		}
		return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// replaceTuntap deletes the host's device, and makes one of the other sort.
func replaceTuntap(mode netlink.TuntapMode) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) {
		f.stopRelay[f.pods[0].HostIfName]()
		inHost("msta", unlink)(t, f)
		withHandle(t, f.network.Host, func(s side) error {
			_, err := tuntapEnds{mode: mode}.end(s, "msta", DefaultMTU, net.HardwareAddr{2, 0, 0, 0, 0, 1})
			return err
		})
	}
}
