// SPDX-License-Identifier: Apache-2.0

// Package netstat reads the state of a network namespace's traffic: counters, sockets, connections.
package netstat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Tuple is one direction of a connection.
type Tuple struct{ Src, Dst netip.AddrPort }

// Lookup finds the connection that the kernel tracks in n (conntrack) by the protocol number and the addresses of its
// first packet. It returns the addresses of its replies: with address translation they are not the reverse. It returns
// false if there is none, or the kernel does not track connections.
func Lookup(n *netns.Namespace, proto uint8, orig Tuple) (reply Tuple, ok bool, err error) {
	family := netlink.InetFamily(unix.AF_INET)
	if orig.Src.Addr().Is6() {
		family = unix.AF_INET6
	}
	table := func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, family)
	}
	flows, err := netns.Get(n, func() ([]*netlink.ConntrackFlow, error) { return rtnl.Dump(table) })
	if err != nil && !noConntrack(err) {
		return Tuple{}, false, fmt.Errorf("look up connection in network namespace %q: %w", n.Name(), err)
	}
	for _, f := range flows {
		if f.Forward.Protocol == proto && tupleOf(f.Forward) == orig {
			return tupleOf(f.Reverse), true, nil
		}
	}
	return Tuple{}, false, nil
}

func tupleOf(t netlink.IPTuple) Tuple {
	end := func(ip net.IP, port uint16) netip.AddrPort {
		addr, _ := netip.AddrFromSlice(ip)
		return netip.AddrPortFrom(addr.Unmap(), port)
	}
	return Tuple{Src: end(t.SrcIP, t.SrcPort), Dst: end(t.DstIP, t.DstPort)}
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
		request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		request.AddRawData(query)
		sockets, err := netns.Get(n, func() ([][]byte, error) {
			return request.Execute(unix.NETLINK_SOCK_DIAG, nl.SOCK_DIAG_BY_FAMILY)
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

// ReadIPCounters reads ipInDelivers, ipForwDatagrams and ipOutRequests (RFC 4293) of IPv4 and IPv6. 0: no IPv6.
func ReadIPCounters(n *netns.Namespace) (v4, v6 IPCounters, err error) {
	err = onThread(n, func(thread procfs.Proc) error {
		snmp, err := thread.Snmp()
		if err != nil {
			return err
		}
		snmp6, err := thread.Snmp6() // without IPv6 all are nil
		v4 = countersOf(snmp.Ip.InDelivers, snmp.Ip.ForwDatagrams, snmp.Ip.OutRequests)
		v6 = countersOf(snmp6.InDelivers, snmp6.OutForwDatagrams, snmp6.OutRequests)
		return err
	})
	if err != nil {
		return IPCounters{}, IPCounters{}, fmt.Errorf("read IP counters of network namespace %q: %w", n.Name(), err)
	}
	return v4, v6, nil
}

// ReadWrongChecksums reads how many TCP segments and UDP datagrams a namespace has dropped because of a wrong checksum
// (InCsumErrors).
func ReadWrongChecksums(n *netns.Namespace) (tcp, udp uint64, err error) {
	err = onThread(n, func(thread procfs.Proc) error {
		snmp, err := thread.Snmp()
		if err != nil {
			return err
		}
		snmp6, err := thread.Snmp6()
		tcp, udp = valueOf(snmp.Tcp.InCsumErrors), valueOf(snmp.Udp.InCsumErrors)+valueOf(snmp6.Udp6.InCsumErrors)
		return err
	})
	if err != nil {
		err = fmt.Errorf("read counters of network namespace %q: %w", n.Name(), err)
	}
	return tcp, udp, err
}

// onThread calls do with a thread that is in a namespace: the namespace of the process may be another one.
func onThread(n *netns.Namespace, do func(thread procfs.Proc) error) error {
	return n.Do(func() error {
		proc, err := procfs.NewDefaultFS()
		if err != nil {
			return err
		}
		thread, err := proc.Thread(os.Getpid(), unix.Gettid())
		if err != nil {
			return err
		}
		return do(thread)
	})
}

func countersOf(delivered, forwarded, sent *float64) IPCounters {
	return IPCounters{valueOf(delivered), valueOf(forwarded), valueOf(sent)}
}

func valueOf(f *float64) uint64 {
	if f == nil {
		return 0
	}
	return uint64(*f)
}
