// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath/policies"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// applyPolicies replaces the policies of the command line with the policies of some documents.
func applyPolicies(t testing.TB, d *Datapath, documents ...string) {
	t.Helper()
	applyJudging(t, d, false, documents...)
}

// applyJudging is as applyPolicies, with policies that judge the pods' own node or do not.
func applyJudging(t testing.TB, d *Datapath, node bool, documents ...string) {
	t.Helper()
	var set manifest.Set
	var err error
	if len(documents) > 0 {
		set, err = manifest.Read(strings.NewReader("---\n" + strings.Join(documents, "\n---\n")))
	}
	succeed(t, err)
	for i := range set.Snapshot.Policies {
		set.Snapshot.Policies[i].JudgesNode = node
	}
	must(d.Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: set.Snapshot}))(t)
}

// labelledPod is a pod in namespace default, whose name is its label app.
func labelledPod(name string) *policy.Pod {
	return &policy.Pod{Namespace: "default", Name: name, Labels: map[string]string{"app": name}}
}

// labelled makes both pods endpoints: a with the label app=a, b with app=b, in namespace default.
func (n network) labelled(t testing.TB, d *Datapath) {
	t.Helper()
	for i, name := range []string{"a", "b"} {
		spec := n.attachment(i)
		spec.Pod = labelledPod(name)
		must2(d.Endpoints().Put(t.Context(), spec))(t)
	}
}

// caller is the client of a connection, with its network.
type caller struct {
	*Datapath
	from    *netns.Namespace
	network string
}

// refused sends to an address until a program has counted a drop for a reason.
func (c caller) refused(t testing.TB, to netip.AddrPort, reason string) {
	t.Helper()
	before := counts(t, c.Datapath)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- c.from.Do(func() error {
			conn, err := (&net.Dialer{Timeout: 20 * time.Second}).DialContext(ctx, c.network, to.String())
			if err == nil {
				_, err = conn.Write([]byte("x"))
				_ = conn.Close()
			}
			return err
		})
	}()
	awaitCount(t, c.Datapath, before, reason)
	cancel()
	err := <-done
	testkit.Check(t, err != nil || c.network != "tcp", "tcp to %s: connected, want %s", to, reason)
}

func (c caller) allowed(t testing.TB, to netip.AddrPort) {
	t.Helper()
	noError(t, errOf(testkit.RoundTrip(t, c.from, c.network, to.String(), []byte("hello"))), "%s to %s", c.network, to)
}

// netpol returns a policy in namespace default, for the pods of an app, or for all without one.
func netpol(name, app, rules string) string {
	if app != "" {
		app = "matchLabels: {app: " + app + "}"
	}
	return "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: " + name +
		"}, spec: {podSelector: {" + app + "}, " + rules + "}}"
}

var (
	denyAll      = netpol("deny", "", "policyTypes: [Ingress]")
	denyIngressA = netpol("deny-a", "a", "policyTypes: [Ingress]")
	denyIngressB = netpol("deny-b-in", "b", "policyTypes: [Ingress]")
	denyEgressA  = netpol("deny-a-out", "a", "policyTypes: [Egress]")
	denyEgressB  = netpol("deny-b", "b", "policyTypes: [Egress]")
	fromBToA     = netpol("b-to-a", "a", "ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]")
	fromAnyToA   = netpol("any-to-a", "a", `ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: "::/0"}}]}]`)
	egressFromB  = netpol("b", "b", "policyTypes: [Ingress, Egress], egress: [{ports: [{protocol: UDP, port: 53}, "+
		"{protocol: UDP, port: 8080}]}, {to: [{podSelector: {matchLabels: {app: a}}}]}]")
	// onlyOutsideToA lets a machine outside and the node reach the pod a, and no other peer.
	onlyOutsideToA = netpol("outside-to-a", "a", fmt.Sprintf(
		`ingress: [{from: [{ipBlock: {cidr: %s/32}}, {ipBlock: {cidr: "%s/128"}}]}]`, outside4, outside6))
)

const ingressDrop, egressDrop = "drop_policy_ingress", "drop_policy_egress"

// testPolicies sends real traffic under policies that come and go.
func testPolicies(t *testing.T, n network, d *Datapath, f family) {
	for _, network := range []string{"tcp", "udp"} {
		t.Run(f.name+"/"+network, func(t *testing.T) { callUnderPolicies(t, n, caller{d, n.pods[1], network}, f) })
	}
}

func callUnderPolicies(t *testing.T, n network, b caller, f family) {
	d, network := b.Datapath, b.network
	applyPolicies(t, d)
	backend := testkit.Echo(t, n.pods[0], network, net.JoinHostPort(f.pod, "0"))
	p, _ := service.ParseProtocol(network)
	s := newService(p, net.JoinHostPort(f.service, servicePort), backend.String())
	putService(t, d, s)
	both := []netip.AddrPort{backend, s.Frontend}
	for _, to := range both {
		b.allowed(t, to)
	}
	applyPolicies(t, d, denyIngressA)
	for _, to := range both {
		b.refused(t, to, "drop_policy_ingress")
	}
	caller{d, n.host, network}.allowed(t, backend) // the node reaches its pods
	caller{d, n.pods[0], network}.allowed(t, s.Frontend)
	applyJudging(t, d, true, denyIngressA)
	caller{d, n.host, network}.refused(t, backend, "drop_policy_ingress")
	applyJudging(t, d, true, denyIngressA, fromAnyToA)
	caller{d, n.host, network}.allowed(t, backend)
	applyPolicies(t, d, denyIngressA, fromBToA)
	for _, to := range both {
		b.allowed(t, to)
	}
	applyPolicies(t, d, denyIngressA, fromBToA, denyEgressB)
	for _, to := range both {
		b.refused(t, to, "drop_policy_egress")
	}
	applyPolicies(t, d)
	for _, to := range both {
		b.allowed(t, to)
	}
}

// TestForgingLinkLocal has a macvlan pod with a further device in a nested namespace. The pod poses as another pod,
// with that pod's link-local address, to a pod that lets the other in. The other is let in by it.
func TestForgingLinkLocal(t *testing.T) {
	n, d := slaves(t), openTest(t)
	n.labelled(t, d)
	other := testkit.Namespace(t, "podc")
	n.run(t, "-n HOST link add link up0 name eth0 netns "+other.Name()+" type macvlan mode bridge")
	n.run(t, "-n "+other.Name()+" addr add fd00:10::c/64 dev eth0 nodad\n-n "+other.Name()+" link set eth0 up")
	spec := EndpointSpec{Namespace: other, IfName: "eth0", Host: n.host, Pod: labelledPod("c")}
	must2(d.Endpoints().Put(t.Context(), spec))(t)
	local, _ := linkLocalOf(t, other)
	applyPolicies(t, d, netpol("c-to-a", "a", "ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]"),
		netpol("range", "c", `ingress: [{from: [{ipBlock: {cidr: "fe80::78/128"}}]}]`))
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
			by := sender{ns: deep, index: device.Index, mac: device.MAC, next: a.MAC}
			succeed(t, by.raw(by.datagram(c.from, netip.AddrPortFrom(to, 7777), "lie")))
			awaitCount(t, d, before, c.drop)
		}
	}
	server := netip.AddrPortFrom(to.WithZone("eth0"), testkit.Echo(t, n.pods[0], "tcp", "[::]:0").Port())
	testkit.Eventually(t, 30*time.Second, func() error { return connectFrom(other, local.WithZone("eth0"), server) })
}

// TestBackendAtAllowedAddress: a service's backend is an address that a pod is allowed. A policy comes that denies the
// pod the connection: it sends by it no more.
func TestBackendAtAllowedAddress(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.labelled(t, d)
	n.allowB(t, d)
	n.run(t, "-n HOST route replace 192.168.77.7/32 via "+podB4+" onlink dev vb")
	backend, frontend := netip.MustParseAddrPort("192.168.77.7:9000"), netip.MustParseAddrPort("10.96.0.10:80")
	putService(t, d, newService(service.UDP, frontend.String(), backend.String()))
	client, server := listenIn(t, n.pods[0], podA4), listenAt(t, n.pods[1], backend.String())
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
	applyPolicies(t, d, netpol("shut-b", "b", "policyTypes: [Ingress, Egress]"))
	for range 2 {
		failIf(t, answer() == nil, "the client has received what the backend's policy denies")
	}
}

// TestDeliveredMark has senders that are not endpoints mark their packets as delivered: a policy holds against them
// all the same.
func TestDeliveredMark(t *testing.T) {
	testkit.RequireTool(t, "tc")
	senders := map[string]func(t *testing.T, n network, d *Datapath) (ns *netns.Namespace, source string){
		"another network's container": func(_ *testing.T, n network, _ *Datapath) (*netns.Namespace, string) {
			return n.pods[1], podB4
		},
		"a pod that is no endpoint": func(t *testing.T, n network, d *Datapath) (*netns.Namespace, string) {
			must(d.Guards().Put(t.Context(), n.attachment(1)))(t)
			return n.pods[1], podB4
		},
		"a pod's own network namespace": nestedMacvlan,
	}
	for name, make := range senders {
		t.Run(name, func(t *testing.T) {
			n, d := routed(t), openTest(t)
			spec := n.attachment(0)
			spec.Pod = &policy.Pod{Namespace: "default", Name: "a"}
			must2(d.Endpoints().Put(t.Context(), spec))(t)
			from, source := make(t, n, d)
			victim := listenIn(t, n.pods[0], podA4)
			send := func() error { return sendUDP(from, source, victim) }
			testkit.Eventually(t, 10*time.Second, send)
			testkit.Command(t, from, "tc qdisc add dev eth0 clsact")
			testkit.Command(t, from, "tc filter add dev eth0 egress protocol all u32 match u32 0 0 flowid 1:6d73")
			testkit.Eventually(t, 10*time.Second, send)
			applyPolicies(t, d, denyAll)
			before := counts(t, d)
			for range 3 {
				failIf(t, send() == nil, "a packet arrives that the policy denies")
			}
			equal(t, delta(t, d, before)["drop_policy_ingress"], 3, "drop_policy_ingress")
		})
	}
}

// nestedMacvlan is a network namespace that root of a macvlan pod has made, on a second device.
func nestedMacvlan(t *testing.T, n network, d *Datapath) (ns *netns.Namespace, source string) {
	t.Helper()
	pod, deep := testkit.Namespace(t, "macvlan"), testkit.Namespace(t, "deep")
	n.uplink(t)
	n.run(t, strings.NewReplacer("MACVLAN", pod.Name(), "DEEP", deep.Name()).Replace(`
		-n HOST link add mv0 link up0 type macvlan mode bridge
		up HOST mv0 192.168.77.1/24
		-n HOST link add link up0 name eth0 netns MACVLAN type macvlan mode bridge
		up MACVLAN eth0 192.168.77.10/24
		-n MACVLAN link add link eth0 name eth0 netns DEEP type macvlan mode bridge
		up DEEP eth0 192.168.77.66/24
		default DEEP 192.168.77.1`))
	must2(d.Endpoints().Put(t.Context(), EndpointSpec{Namespace: pod, IfName: "eth0", Host: n.host}))(t)
	return deep, "192.168.77.66"
}

// sendUDP sends a datagram, and returns an error unless it arrives.
func sendUDP(from *netns.Namespace, source string, to net.PacketConn) error {
	err := from.Do(func() error {
		conn, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}).Dial("udp", to.LocalAddr().String())
		if err != nil {
			return err
		}
		_, err = conn.Write([]byte("datagram"))
		return errors.Join(err, conn.Close())
	})
	if err != nil {
		return err
	}
	_ = to.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, _, err = to.ReadFrom(make([]byte, 100))
	return err
}
