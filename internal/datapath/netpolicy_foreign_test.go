// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestAddressEndsInZeros: an address whose last 32 bits are 0 makes its pod's policies hold as another does, whatever address it sends from.
func TestAddressEndsInZeros(t *testing.T) {
	b := newBench(t)
	for _, last := range []string{"fd00:1:0:0:0:1:0:0", "fd00:1:0:0:0:1:0:1"} {
		p := policed{newWorld(b, true, protoUDP)}
		p.reset(t, objects.AttachHost)
		addr := netip.MustParseAddr(last)
		row, _ := must2(p.objects.Endpoints.Get(rows.EncodeAddr(p.client.Addr())))(t)
		row.Id = 77
		succeed(t, p.objects.Endpoints.Put(rows.EncodeAddr(addr), row))
		p.apply(t, false, denyEgressB, `{apiVersion: v1, kind: Pod, metadata: {name: z, labels: {app: b}}, status: {podIP: "`+last+`"}}`)
		from := policedHooks{p, objects.Hook{Point: objects.AttachHost, Program: "from_pod"}, addr}
		link, _ := p.link()
		from.gets(t, egressDrop, p.first(netip.AddrPortFrom(addr, 4000), p.outsider).frame())
		from.gets(t, egressDrop, p.first(link, p.outsider).frame())
		p.apply(t, false)
		succeed(t, p.objects.Endpoints.Delete(rows.EncodeAddr(addr)))
	}
}

// TestForgingLinkLocal has a macvlan pod, which has a further device in a nested namespace, pose as another pod by that one's link-local address, to a
// pod that lets the other in. The other is let in by it.
func TestForgingLinkLocal(t *testing.T) {
	n, d := slaves(t), openTest(t)
	n.labelled(t, d)
	other := testkit.Namespace(t, "podc")
	n.run(t, "-n HOST link add link up0 name eth0 netns "+other.Name()+" type macvlan mode bridge")
	n.run(t, "-n "+other.Name()+" addr add fd00:10::c/64 dev eth0 nodad\n-n "+other.Name()+" link set eth0 up")
	spec := EndpointSpec{Namespace: other, IfName: "eth0", Host: n.host, Pod: &policy.Pod{Namespace: "default", Name: "c", Labels: map[string]string{"app": "c"}}}
	must2(d.Endpoints().Put(t.Context(), spec))(t)
	local, _ := linkLocalOf(t, other)
	applyPolicies(t, d, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: c-to-a}, spec: {podSelector: {matchLabels: {app: a}},
		ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}}`,
		`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: range}, spec: {podSelector: {matchLabels: {app: c}},
		ingress: [{from: [{ipBlock: {cidr: "fe80::78/128"}}]}]}}`)
	deep := testkit.Namespace(t, "deep")
	n.run(t, "-n PODB link add link eth0 name deep type macvlan mode bridge\n-n PODB link set deep netns "+deep.Name())
	n.run(t, "-n "+deep.Name()+" link set deep up")
	device := must(rtnl.In(deep).Device("deep"))(t)
	a := must(rtnl.In(n.pods[0]).Device("eth0"))(t)
	to, _ := linkLocalOf(t, n.pods[0])
	for _, c := range []struct {
		from netip.Addr
		drop string
	}{
		{netip.MustParseAddr("fd00:10::c"), "drop_source"},
		{netip.MustParseAddr("fe80::77"), ingressDrop},
		{netip.MustParseAddr("fe80::78"), ingressDrop}, // a rule has it as a range
		{local.WithZone(""), "drop_source"},
	} {
		for _, to := range []netip.Addr{netip.MustParseAddr(podA6), to.WithZone("")} {
			before := counts(t, d)
			p := packet{src: netip.AddrPortFrom(c.from, 1234), dst: netip.AddrPortFrom(to, 7777), proto: protoUDP, payload: "lie"}
			succeed(t, sendFrame(deep, device.Index, slices.Concat(a.MAC, device.MAC, []byte{0x86, 0xdd}, p.ip()), false))
			testkit.Eventually(t, 10*time.Second, func() error {
				if n := delta(t, d, before)[c.drop]; n == 0 {
					return fmt.Errorf("as %s to %s: %v", c.from, to, delta(t, d, before))
				}
				return nil
			})
		}
	}
	server := netip.AddrPortFrom(to.WithZone("eth0"), testkit.Echo(t, n.pods[0], "tcp", "[::]:0").Port())
	testkit.Eventually(t, 30*time.Second, func() error { return connectFrom(other, local.WithZone("eth0"), server) })
}

// TestBackendAtAllowedAddress: a service's backend is an address that a pod is allowed. A policy comes that denies the pod the connection: it sends by it no more.
func TestBackendAtAllowedAddress(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.labelled(t, d)
	n.allowB(t, d)
	n.run(t, "-n HOST route replace 192.168.77.7/32 via "+podB4+" onlink dev vb")
	backend, frontend := netip.MustParseAddrPort("192.168.77.7:9000"), netip.MustParseAddrPort("10.96.0.10:80")
	must2(d.Services().Put(t.Context(), service.CLI, service.Service{Frontend: frontend, Protocol: service.UDP, Backends: service.Backends(backend)}))(t)
	listen := func(i int, at string) (c net.PacketConn) {
		t.Helper()
		if err := n.pods[i].Do(func() (err error) { c, err = net.ListenPacket("udp", at); return err }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	client, server := listen(0, podA4+":4444"), listen(1, backend.String())
	receive := func(c net.PacketConn, timeout time.Duration) (net.Addr, error) {
		_ = c.SetReadDeadline(time.Now().Add(timeout))
		_, from, err := c.ReadFrom(make([]byte, 99))
		return from, err
	}
	var from net.Addr
	testkit.Eventually(t, 10*time.Second, func() (err error) {
		if _, err = client.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(frontend)); err == nil {
			from, err = receive(server, time.Second)
		}
		return err
	})
	answer := func() error {
		if _, err := server.WriteTo([]byte("y"), from); err != nil {
			return err
		}
		_, err := receive(client, time.Second)
		return err
	}
	testkit.Eventually(t, 10*time.Second, answer)
	applyPolicies(t, d, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: shut-b}, spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress, Egress]}}`)
	for range 2 {
		if err := answer(); err == nil {
			t.Error("the client has received what the backend's policy denies")
		}
	}
}
