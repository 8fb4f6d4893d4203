// SPDX-License-Identifier: Apache-2.0

// Package netstat reads the counters, the sockets and the connection table of a network namespace, and empties the table.
package netstat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// Tuple is one direction of a connection.
type Tuple struct{ Src, Dst netip.AddrPort }

// Flow is an entry of the kernel's connection table (conntrack). With address translation, Reply is not the reverse of
// Orig.
type Flow struct {
	Proto uint8 // IP protocol number: 6 is TCP, 17 is UDP
	Orig  Tuple // as the first packet came in
	Reply Tuple // as its replies are expected
}

// Lookup returns the connection that the kernel tracks in n by the addresses of its first packet; false if there is none,
// the addresses are not two of one family, or the kernel does not track connections. It looks up one entry: a list walks
// the whole table, that of all namespaces.
func Lookup(n *netns.Namespace, proto uint8, orig Tuple) (flow Flow, ok bool, err error) {
	if source, destination := orig.Src.Addr(), orig.Dst.Addr(); !source.IsValid() || source.BitLen() != destination.BitLen() {
		return Flow{}, false, nil
	}
	var found [][]byte
	err = n.Do(func() error {
		found, err = requestFlow(proto, orig).Execute(unix.NETLINK_NETFILTER, 0)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT), noConntrack(err), err == nil && len(found) == 0:
		return Flow{}, false, nil
	case err != nil:
		return Flow{}, false, fmt.Errorf("look up connection in network namespace %q: %w", n.Name(), err)
	}
	reply, err := replyOf(found[0])
	return Flow{Proto: proto, Orig: orig, Reply: reply}, err == nil, err
}

// Flush deletes the connections that the kernel tracks in n. Where it does not track any, there is nothing to delete.
func Flush(n *netns.Namespace) error {
	request := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	err := n.Do(func() error {
		_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
		return err
	})
	if err != nil && !noConntrack(err) {
		return fmt.Errorf("delete the tracked connections in network namespace %q: %w", n.Name(), err)
	}
	return nil
}

// noConntrack reports whether err means that the kernel lacks nfnetlink (EPROTONOSUPPORT on the socket) or conntrack
// (EINVAL for a missing subsystem, EOPNOTSUPP for a missing call).
func noConntrack(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// requestFlow returns the request of an entry (IPCTNL_MSG_CT_GET of linux/netfilter/nfnetlink_conntrack.h).
func requestFlow(proto uint8, orig Tuple) *nl.NetlinkRequest {
	family, source, destination := uint8(unix.AF_INET), nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if orig.Src.Addr().Is6() {
		family, source, destination = unix.AF_INET6, nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	addresses := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	addresses.AddRtAttr(source, orig.Src.Addr().AsSlice())
	addresses.AddRtAttr(destination, orig.Dst.Addr().AsSlice())
	ports := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	ports.AddRtAttr(nl.CTA_PROTO_NUM, []byte{proto})
	ports.AddRtAttr(nl.CTA_PROTO_SRC_PORT, nl.BEUint16Attr(orig.Src.Port()))
	ports.AddRtAttr(nl.CTA_PROTO_DST_PORT, nl.BEUint16Attr(orig.Dst.Port()))
	req := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	req.AddData(tuple)
	return req
}

// replyOf returns the reply direction of an entry.
func replyOf(message []byte) (Tuple, error) {
	const typeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	attribute := func(b []byte, kind uint16) ([]byte, error) {
		attrs, err := nl.ParseRouteAttr(b)
		if err != nil {
			return nil, err
		}
		for _, a := range attrs {
			if a.Attr.Type&typeMask == kind {
				return a.Value, nil
			}
		}
		return nil, fmt.Errorf("no attribute %d", kind)
	}
	var errs []error
	get := func(b []byte, kind uint16) []byte {
		value, err := attribute(b, kind)
		errs = append(errs, err)
		return value
	}
	if len(message) < nl.SizeofNfgenmsg {
		return Tuple{}, errors.New("entry of a connection: too short")
	}
	source, destination := uint16(nl.CTA_IP_V4_SRC), uint16(nl.CTA_IP_V4_DST)
	if message[0] == unix.AF_INET6 {
		source, destination = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	tuple := get(message[nl.SizeofNfgenmsg:], nl.CTA_TUPLE_REPLY)
	ips, ports := get(tuple, nl.CTA_TUPLE_IP), get(tuple, nl.CTA_TUPLE_PROTO)
	end := func(ip, port uint16) netip.AddrPort {
		addr, _ := netip.AddrFromSlice(get(ips, ip))
		number := append(get(ports, port), 0, 0)
		return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(number))
	}
	t := Tuple{Src: end(source, nl.CTA_PROTO_SRC_PORT), Dst: end(destination, nl.CTA_PROTO_DST_PORT)}
	if err := errors.Join(errs...); err != nil {
		return Tuple{}, fmt.Errorf("entry of a connection: %w", err)
	}
	return t, nil
}
