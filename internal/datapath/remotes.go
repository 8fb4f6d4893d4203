// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
)

// Remotes are the pods of other nodes that programs reach past the stacks of both hosts.
type Remotes struct{ o *objects.Objects }

// Remote is the way to a range of pods of another node.
type Remote struct {
	Range   netip.Prefix
	NextHop netip.Addr // on the network of the device: the node, or a router
	IfIndex int        // the host's device that leads to NextHop
	MTU     int        // bytes of an IP packet of a pod
	// Node and Local are the ends of the VXLAN tunnel, and NodeMAC and LocalMAC the MAC addresses of its devices. Not
	// valid: packets are sent as they are.
	Node, Local       netip.Addr
	NodeMAC, LocalMAC net.HardwareAddr
	VNI               uint32
	Port              uint16 // the UDP port of VXLAN; it and VNI are the same for all nodes
}

// remoteKey and remoteRow are a key and a row of remotes, as bpf/mustang/maps.h defines them.
type (
	remoteKey struct {
		Length uint32
		Addr   objects.Addr
	}
	remoteRow struct {
		NextHop, Node, Local objects.Addr
		NodeMAC, LocalMAC    [6]byte
		IfIndex, MTU, Flags  uint32
	}
)

func (r Remotes) table() objects.Table[remoteKey, remoteRow] {
	return objects.Table[remoteKey, remoteRow]{Map: r.o.Remotes, Name: "remotes"}
}

// Apply makes the ways exactly want. Without a way, the host's routes lead to the pods. Unchanged ways are not written.
func (r Remotes) Apply(ctx context.Context, want []Remote) (changed bool, err error) {
	err = r.o.WithLock(ctx, func() error { changed, err = r.write(want); return err })
	return changed, err
}

// write writes the tunnel before rows that lead there. Programs use copies of rows until Invalidate.
func (r Remotes) write(want []Remote) (changed bool, err error) {
	have, err := r.rows()
	if err != nil {
		return false, err
	}
	desired := make(map[remoteKey]remoteRow, len(want))
	var vni uint32
	var port uint16
	for _, w := range want {
		length := uint32(w.Range.Bits() + 128 - w.Range.Addr().BitLen())
		desired[remoteKey{Length: length, Addr: rows.EncodeAddr(w.Range.Masked().Addr())}] = encodeRemote(w)
		if w.Node.IsValid() {
			vni, port = w.VNI, w.Port
		}
	}
	table := r.table()
	tunnel, err := r.o.NodeState.SetRemotes(len(desired), vni, port)
	changed = tunnel
	for key, row := range desired {
		if h, ok := have[key]; err == nil && (!ok || h != row) {
			changed, err = true, table.Put(key, row)
		}
	}
	for key := range have {
		if _, ok := desired[key]; err == nil && !ok {
			changed, err = true, table.Delete(key)
		}
	}
	if changed {
		err = cmp.Or(err, r.o.NodeState.Invalidate())
	}
	return changed, err
}

// List returns the ways, sorted by range. It takes no lock.
func (r Remotes) List() (all []Remote, err error) {
	have, err := r.rows()
	if err != nil {
		return nil, err
	}
	vni, port, err := r.o.NodeState.Tunnel()
	for key, row := range have {
		all = append(all, decodeRemote(key, row, vni, port))
	}
	slices.SortFunc(all, func(a, b Remote) int { return a.Range.Compare(b.Range) })
	return all, err
}

func (r Remotes) rows() (map[remoteKey]remoteRow, error) {
	all := make(map[remoteKey]remoteRow)
	var key remoteKey
	var row remoteRow
	rows := r.o.Remotes.Iterate() // a trie has no batches
	for rows.Next(&key, &row) {
		all[key] = row
	}
	return all, rows.Err()
}

func encodeRemote(w Remote) remoteRow {
	row := remoteRow{NextHop: rows.EncodeAddr(w.NextHop), IfIndex: uint32(w.IfIndex), MTU: uint32(w.MTU)}
	if w.NextHop.Is6() {
		row.Flags |= objects.RemoteV6
	}
	if w.Node.IsValid() {
		row.Flags |= objects.RemoteTunnel
		row.Node, row.Local = rows.EncodeAddr(w.Node), rows.EncodeAddr(w.Local)
		copy(row.NodeMAC[:], w.NodeMAC)
		copy(row.LocalMAC[:], w.LocalMAC)
	}
	return row
}

func decodeRemote(key remoteKey, row remoteRow, vni uint32, port uint16) Remote {
	addr := rows.DecodeAddr(key.Addr)
	w := Remote{Range: netip.PrefixFrom(addr, int(key.Length)-128+addr.BitLen()), NextHop: rows.DecodeAddr(row.NextHop),
		IfIndex: int(row.IfIndex), MTU: int(row.MTU)}
	if row.Flags&objects.RemoteTunnel != 0 {
		w.Node, w.Local, w.VNI, w.Port = rows.DecodeAddr(row.Node), rows.DecodeAddr(row.Local), vni, port
		w.NodeMAC, w.LocalMAC = slices.Clone(row.NodeMAC[:]), slices.Clone(row.LocalMAC[:])
	}
	return w
}

// Remotes returns the handle of the ways to pods of other nodes.
func (d *Datapath) Remotes() Remotes { return Remotes{d.objects} }
