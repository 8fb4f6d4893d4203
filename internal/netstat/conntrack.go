// SPDX-License-Identifier: Apache-2.0

// Package netstat reads the counters, the sockets and the connection table of a network namespace, and empties the
// table.
package netstat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// Tuple is one direction of a connection.
type Tuple struct{ Src, Dst netip.AddrPort }

// Lookup finds the connection that the kernel tracks in n (conntrack) by the protocol number and the addresses of its
// first packet. It returns the addresses of its replies: with address translation they are not the reverse. It returns
// false if there is none, or the kernel does not track connections.
func Lookup(n *netns.Namespace, proto uint8, orig Tuple) (reply Tuple, ok bool, err error) {
	if !orig.Src.IsValid() || !orig.Dst.IsValid() || orig.Src.Addr().Is4() != orig.Dst.Addr().Is4() {
		return Tuple{}, false, nil
	}
	var found [][]byte
	err = n.Do(func() (err error) {
		found, err = lookupRequest(proto, orig).Execute(unix.NETLINK_NETFILTER, 0)
		return err
	})
	if errors.Is(err, unix.ENOENT) || noConntrack(err) || err == nil && len(found) == 0 {
		return Tuple{}, false, nil
	}
	var tuples [nl.CTA_TUPLE_REPLY + 1]Tuple
	if err == nil {
		tuples, err = readTuples(found[0])
	}
	if err != nil {
		return Tuple{}, false, fmt.Errorf("look up connection in network namespace %q: %w", n.Name(), err)
	}
	// the kernel also finds a connection by its replies
	return tuples[nl.CTA_TUPLE_REPLY], tuples[nl.CTA_TUPLE_ORIG] == orig, nil
}

// lookupRequest asks for one connection: a dump walks the table of all namespaces, which has hundreds of thousands of
// buckets.
func lookupRequest(proto uint8, orig Tuple) *nl.NetlinkRequest {
	family, src, dst := unix.AF_INET, nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if orig.Src.Addr().Is6() {
		family, src, dst = unix.AF_INET6, nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	ip := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	ip.AddRtAttr(src, orig.Src.Addr().AsSlice())
	ip.AddRtAttr(dst, orig.Dst.Addr().AsSlice())
	ports := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	ports.AddRtAttr(nl.CTA_PROTO_NUM, []byte{proto})
	ports.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, orig.Src.Port()))
	ports.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, orig.Dst.Port()))
	r := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(family), Version: nl.NFNETLINK_V0})
	r.AddData(tuple)
	return r
}

// readTuples returns the tuples of a connection by their attribute.
func readTuples(message []byte) (tuples [nl.CTA_TUPLE_REPLY + 1]Tuple, err error) {
	attributes := func(data []byte) map[uint16][]byte {
		list, wrong := nl.ParseRouteAttr(data)
		err = errors.Join(err, wrong)
		all := map[uint16][]byte{}
		for _, a := range list {
			all[a.Attr.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = slices.Clip(a.Value)
		}
		return all
	}
	all := attributes(message[min(len(message), nl.SizeofNfgenmsg):])
	for direction := range tuples {
		tuple := attributes(all[uint16(direction)])
		ip, ports := attributes(tuple[nl.CTA_TUPLE_IP]), attributes(tuple[nl.CTA_TUPLE_PROTO])
		end := func(v4, v6, port uint16) netip.AddrPort {
			addr, _ := netip.AddrFromSlice(append(ip[v4], ip[v6]...)) // a connection has one of them
			return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(append(ports[port], 0, 0)))
		}
		tuples[direction] = Tuple{Src: end(nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT),
			Dst: end(nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT)}
	}
	return tuples, err
}

// Flush deletes the connections that the kernel tracks in n. Where it does not track any, there is nothing to delete.
func Flush(n *netns.Namespace) error {
	err := n.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
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

// Receiver is a socket that receives whatever comes to its port.
type Receiver struct {
	Addr  netip.Addr
	Only6 bool // IPV6_V6ONLY: without it a socket at [::] receives IPv4 too
}

// Receivers returns the sockets of n that receive whatever comes to a port: TCP sockets that listen, or UDP sockets
// without a peer. proto is 6 (TCP) or 17 (UDP). A kernel without CONFIG_INET_DIAG names none.
func Receivers(n *netns.Namespace, proto uint8, port uint16) (all []Receiver, err error) {
	state := 10 // TCP_LISTEN
	if proto == unix.IPPROTO_UDP {
		state = 7 // TCP_CLOSE
	}
	for family, size := range map[uint8]int{unix.AF_INET: 4, unix.AF_INET6: 16} {
		query := make([]byte, 56) // struct inet_diag_req_v2 (linux/inet_diag.h)
		query[0], query[1] = family, proto
		binary.NativeEndian.PutUint32(query[4:], 1<<state)
		binary.BigEndian.PutUint16(query[8:], port)
		var sockets [][]byte
		err := n.Do(func() (err error) {
			request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
			request.AddRawData(query)
			sockets, err = request.Execute(unix.NETLINK_SOCK_DIAG, nl.SOCK_DIAG_BY_FAMILY)
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("list sockets in %q: %w", n.Name(), err)
		}
		for _, socket := range sockets {
			if addr, ok := netip.AddrFromSlice(socket[8 : 8+size]); ok { // id.idiag_src of struct inet_diag_msg
				all = append(all, Receiver{addr.Unmap(), isOnly6(socket)})
			}
		}
	}
	return all, nil
}

// isOnly6 reports whether a message has INET_DIAG_SKV6ONLY set, which follows its struct inet_diag_msg.
func isOnly6(message []byte) bool {
	const header, only6 = 72, 11
	attributes, err := nl.ParseRouteAttr(message[header:])
	return err == nil && slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == only6 && a.Value[0] != 0
	})
}

// IPCounters are packet counters of a namespace's IP layer. A GSO packet counts as one.
type IPCounters struct {
	// Delivered were for the namespace itself, Forwarded passed through it, and Sent came from it.
	Delivered, Forwarded, Sent uint64
}

// ReadIPCounters reads ipInDelivers, ipForwDatagrams and ipOutRequests (RFC 4293) of IPv4,
// and the same of IPv6, which are 0 without IPv6.
func ReadIPCounters(n *netns.Namespace) (v4, v6 IPCounters, err error) {
	err = n.Do(func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names, values string // the first line of a protocol, and the second
		for line := range strings.Lines(string(snmp)) {
			if strings.HasPrefix(line, "Ip:") {
				names, values = values, line
			}
		}
		v4, err = countersOf(strings.Fields(names), strings.Fields(values), "InDelivers", "ForwDatagrams", "OutRequests")
		if err != nil {
			return err
		}
		snmp6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a kernel without IPv6
		} else if err != nil {
			return err
		}
		words := strings.Fields(string(snmp6)) // a name and a value per line
		v6, err = countersOf(words, words[min(1, len(words)):], "Ip6InDelivers", "Ip6OutForwDatagrams", "Ip6OutRequests")
		return err
	})
	if err != nil {
		return IPCounters{}, IPCounters{}, fmt.Errorf("read IP counters of network namespace %q: %w", n.Name(), err)
	}
	return v4, v6, nil
}

// countersOf finds the values at the positions of the names of delivered, forwarded and sent packets.
func countersOf(names, values []string, wanted ...string) (c IPCounters, err error) {
	for i, into := range []*uint64{&c.Delivered, &c.Forwarded, &c.Sent} {
		at := slices.Index(names, wanted[i])
		if at < 0 || at >= len(values) {
			return c, fmt.Errorf("no counter %s", wanted[i])
		}
		if *into, err = strconv.ParseUint(values[at], 10, 64); err != nil {
			return c, fmt.Errorf("counter %s: %w", wanted[i], err)
		}
	}
	return c, nil
}
