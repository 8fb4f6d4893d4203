// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/binary"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// kindOpenVSwitch is the kind of datapaths of Open vSwitch in the kernel, and of
// their internal ports. The kernel tells which belong together by generic
// netlink only.
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

// switchPorts returns the internal ports of n's datapaths. If the kernel knows
// no Open vSwitch there are none.
func (n *Namespace) switchPorts() []switchPort {
	var ports []switchPort
	for _, message := range n.askSwitch("ovs_datapath", 0) {
		datapath := int(binary.NativeEndian.Uint32(message[genericHeaderSize:]))
		for _, message := range n.askSwitch("ovs_vport", datapath) {
			attributes := attributesOf(message[genericHeaderSize+ovsHeaderLen:])
			kind, _ := number(attributes[ovsAttrType])
			index, _ := number(attributes[ovsAttrIfindex])
			if kind != ovsTypeInternal || index == 0 || int(index) == datapath {
				continue
			}
			port := switchPort{datapath: datapath, index: int(index), nsid: here}
			if nsid, ok := number(attributes[ovsAttrNetNSID]); ok {
				port.nsid = int(int32(nsid))
			}
			ports = append(ports, port)
		}
	}
	return ports
}

// askSwitch dumps what a family of Open vSwitch has, of one datapath or of all.
func (n *Namespace) askSwitch(family string, datapath int) [][]byte {
	handle, err := n.netlink(unix.NETLINK_GENERIC)
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

// joinSwitches gives internal ports among n's links their datapath as parent,
// and n's datapaths their ports in other namespaces as children.
func (c *Census) joinSwitches(n *Namespace, links []Link) {
	if !slices.ContainsFunc(links, isSwitch) {
		return
	}
	inode, err := n.Inode()
	if err != nil {
		return
	}
	for _, p := range c.places {
		var ports []switchPort
		if slices.ContainsFunc(p.list(), isSwitch) {
			ports = p.ns.switchPorts()
		}
		if len(ports) == 0 {
			continue
		}
		nsids := c.nsids(p.ns)
		for _, port := range ports {
			in := p
			if port.nsid != here {
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

// addChild gives the port's datapath, among links, the port as a child.
func addChild(links []Link, port switchPort, in *inhabited) {
	i := slices.IndexFunc(links, func(l Link) bool { return l.Index == port.datapath })
	if i < 0 {
		return
	}
	place := in.Place
	links[i].Children = append(links[i].Children, End{
		Name: nameOf(in.list(), port.index), Kind: kindOpenVSwitch, Index: port.index, Place: &place,
	})
}

// setParent gives the port, among links, its datapath as parent.
func setParent(links []Link, port switchPort, of *inhabited, elsewhere bool) {
	i := slices.IndexFunc(links, func(l Link) bool { return l.Index == port.index })
	if i < 0 {
		return
	}
	end := &End{Name: nameOf(of.list(), port.datapath), Kind: kindOpenVSwitch, Index: port.datapath}
	if elsewhere {
		place := of.Place
		end.Place = &place
	}
	links[i].Parent, links[i].ParentIndex = end, port.datapath
}
