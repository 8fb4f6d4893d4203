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
			if p.Inode == inode && in != p {
				addChild(links, port, in)
			}
			if in.Inode == inode {
				setParent(links, port, p, in != p)
			}
		}
	}
}

func isSwitch(l Link) bool { return l.Kind == kindOpenVSwitch }

// addChild adds the port to the children of its datapath among links.
func addChild(links []Link, port switchPort, in *entry) {
	i := slices.IndexFunc(links, func(l Link) bool { return l.Index == port.datapath })
	if i < 0 {
		return
	}
	place := in.NamespaceInfo
	links[i].Children = append(links[i].Children, Peer{
		Name: nameOf(in.list(), port.index), Kind: kindOpenVSwitch, Index: port.index, Namespace: &place,
	})
}

// setParent sets the parent of the port among links to its datapath.
func setParent(links []Link, port switchPort, of *entry, elsewhere bool) {
	i := slices.IndexFunc(links, func(l Link) bool { return l.Index == port.index })
	if i < 0 {
		return
	}
	end := &Peer{Name: nameOf(of.list(), port.datapath), Kind: kindOpenVSwitch, Index: port.datapath}
	if elsewhere {
		place := of.NamespaceInfo
		end.Namespace = &place
	}
	links[i].Parent, links[i].ParentIndex = end, port.datapath
}
