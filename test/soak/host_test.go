// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// host is a host with pods on veths, which are the endpoints of a datapath.
type host struct {
	root string
	d    *datapath.Datapath
	pods []pod
}

type pod struct {
	ns *netns.Namespace
	ip netip.Addr
}

// newHost makes a host whose table has a number of rows of connections.
func newHost(t *testing.T, pods int, connections uint32) *host {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	veth := testkit.Must(podlink.Lookup("veth"))(t)
	h := &host{root: testkit.BPFFS(t) + "/root"}
	sizes := objects.Sizes{Services: 1024, Backends: 8192, Connections: connections, Endpoints: 64}
	h.d = testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: h.root, Sizes: sizes}))(t)
	t.Cleanup(func() { testkit.Succeed(t, h.d.Close()) })
	network := podlink.Network{Host: testkit.Namespace(t, "host"),
		Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.10.1/24")}, MTU: 1500}
	testkit.Succeed(t, veth.Setup(network))
	for i := range pods {
		p := pod{testkit.Namespace(t, fmt.Sprint("pod", i)), podIP(i)}
		spec := podlink.Pod{Namespace: p.ns, IfName: "eth0", HostIfName: fmt.Sprint("veth", i), Addresses: []netip.Addr{p.ip}}
		testkit.Must(veth.Create(network, spec))(t)
		endpoint := datapath.EndpointSpec{Owner: service.CLI, Namespace: p.ns, IfName: "eth0", Host: network.Host}
		_, _, err := h.d.Endpoints().Put(t.Context(), endpoint)
		testkit.Require(t, err == nil, "%v", err)
		h.pods = append(h.pods, p)
	}
	return h
}

func podIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 10, byte(10 + i)}) }

func frontend(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i / 250), byte(1 + i%250)}), 80)
}

// dropped returns the counters of dropped packets that are not zero.
func (h *host) dropped(t *testing.T) map[string]uint64 {
	t.Helper()
	dropped := make(map[string]uint64)
	for name, n := range h.counted(t) {
		if strings.HasPrefix(name, "drop_") && n > 0 {
			dropped[name] = n
		}
	}
	return dropped
}

func (h *host) counted(t *testing.T) map[string]uint64 {
	t.Helper()
	counters := testkit.Must(h.d.Flows().Counters())(t)
	counted := make(map[string]uint64)
	for _, c := range counters {
		counted[c.Name] = c.Packets
	}
	return counted
}

// A request is one byte. The server answers it at once with one byte, except for waitRequest, which it answers when
// something is sent to the channel that it got.
const (
	request     = 'r'
	waitRequest = 'w'
)

// serve runs a TCP server in the pod until the test ends.
func (p pod) serve(t *testing.T, port uint16, answer <-chan struct{}) netip.AddrPort {
	t.Helper()
	addr := netip.AddrPortFrom(p.ip, port)
	var listener net.Listener
	testkit.Succeed(t, p.ns.Do(func() (err error) {
		listener, err = net.Listen("tcp4", addr.String())
		return err
	}))
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go answerAll(conn, answer)
			}
		}
	}()
	return addr
}

// answerAll answers requests until the client closes its side.
func answerAll(conn net.Conn, answer <-chan struct{}) {
	defer conn.Close()
	buffer := make([]byte, 1)
	for {
		if _, err := io.ReadFull(conn, buffer); err != nil {
			return
		}
		if buffer[0] == waitRequest {
			<-answer
		}
		if _, err := conn.Write(buffer); err != nil {
			return
		}
	}
}
