// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"encoding/binary"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// kindOpenVSwitch is the kind of Open vSwitch datapaths in the kernel and of their internal ports. Only generic netlink
// tells which port belongs to which datapath.
const kindOpenVSwitch = "openvswitch"

// Numbers from linux/openvswitch.h.
const (
	ovsVersion        = 1
	ovsCommandGet     = 3 // OVS_DP_CMD_GET, OVS_VPORT_CMD_GET
	ovsAttrType       = 2 // OVS_VPORT_ATTR_TYPE
	ovsAttrIfindex    = 8 // OVS_VPORT_ATTR_IFINDEX
	ovsAttrNetNSID    = 9 // OVS_VPORT_ATTR_NETNSID
	ovsTypeInternal   = 2 // OVS_VPORT_TYPE_INTERNAL
	ovsHeaderLen      = 4
	genericHeaderSize = vnl.SizeofGenlmsg
)

// switchPort is an internal port.
type switchPort struct {
	datapath int // index of the device that stands for the datapath
	index    int // of the port's device
	nsid     int // id of the namespace that the port is in; or here
}

// switchPorts lists the internal ports of the datapaths in n; none if the kernel lacks Open vSwitch.
func switchPorts(n *netns.Namespace) []switchPort {
	var ports []switchPort
	for _, message := range dumpSwitch(n, "ovs_datapath", 0) {
		datapath := int(binary.NativeEndian.Uint32(message[genericHeaderSize:]))
		for _, message := range dumpSwitch(n, "ovs_vport", datapath) {
			attributes := attributesOf(message[genericHeaderSize+ovsHeaderLen:])
			kind, _ := number(attributes[ovsAttrType])
			index, _ := number(attributes[ovsAttrIfindex])
			if kind != ovsTypeInternal || index == 0 || int(index) == datapath {
				continue
			}
			port := switchPort{datapath: datapath, index: int(index), nsid: sameNamespace}
			if nsid, ok := number(attributes[ovsAttrNetNSID]); ok {
				port.nsid = int(int32(nsid))
			}
			ports = append(ports, port)
		}
	}
	return ports
}

// dumpSwitch dumps the objects of a generic netlink family of Open vSwitch, of one datapath or of all.
func dumpSwitch(n *netns.Namespace, family string, datapath int) [][]byte {
	handle, err := rtnl.In(n).FamilyHandle(unix.NETLINK_GENERIC)
	if err != nil {
		return nil
	}
	defer handle.Close()
	id, err := handle.GenlFamilyGet(family)
	if err != nil {
		return nil
	}
	request := vnl.NewNetlinkRequest(int(id.ID), unix.NLM_F_DUMP)
	header := make([]byte, genericHeaderSize+ovsHeaderLen)
	header[0], header[1] = ovsCommandGet, ovsVersion
	binary.NativeEndian.PutUint32(header[genericHeaderSize:], uint32(datapath))
	request.AddRawData(header)
	var messages [][]byte
	err = n.Do(func() (err error) {
		messages, err = request.Execute(unix.NETLINK_GENERIC, 0)
		return err
	})
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(messages, func(m []byte) bool { return len(m) < len(header) })
}

// joinSwitches sets the datapath as parent of internal ports among the links of n, and ports in other namespaces as
// children of datapaths in n.
func (c *Snapshot) joinSwitches(n *netns.Namespace, links []Link) {
	if !slices.ContainsFunc(links, isSwitch) {
		return
	}
	inode, err := n.Inode()
	if err != nil {
		return
	}
	for _, p := range c.entries {
		var ports []switchPort
		if slices.ContainsFunc(p.list(), isSwitch) {
			ports = switchPorts(p.ns)
		}
		if len(ports) == 0 {
			continue
		}
		nsids := c.nsids(p.ns)
		for _, port := range ports {
			in := p
			if port.nsid != sameNamespace {
				in = nsids[port.nsid]
			}
			if in == nil {
				continue
			}
			place, above := in.NamespaceInfo, p.NamespaceInfo
			if l := linkAt(links, port.datapath); p.Inode == inode && in != p && l != nil {
				l.Children = append(l.Children, Peer{
					Name: nameOf(in.list(), port.index), Kind: kindOpenVSwitch, Index: port.index, Namespace: &place,
				})
			}
			if l := linkAt(links, port.index); in.Inode == inode && l != nil {
				l.ParentIndex = port.datapath
				l.Parent = &Peer{Name: nameOf(p.list(), port.datapath), Kind: kindOpenVSwitch, Index: port.datapath}
				if in != p {
					l.Parent.Namespace = &above
				}
			}
		}
	}
}

func isSwitch(l Link) bool { return l.Kind == kindOpenVSwitch }
