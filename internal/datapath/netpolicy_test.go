// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath/policies"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// applyPolicies makes the policies of the command line those of some documents.
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
	if err != nil {
		t.Fatal(err)
	}
	for i := range set.Snapshot.Policies {
		set.Snapshot.Policies[i].JudgesNode = node
	}
	must(d.Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: set.Snapshot}))(t)
}

// labelled makes both pods endpoints: a with the label app=a, b with app=b, in namespace default.
func (n network) labelled(t testing.TB, d *Datapath) {
	t.Helper()
	for i, name := range []string{"a", "b"} {
		spec := n.attachment(i)
		spec.Pod = &policy.Pod{Namespace: "default", Name: name, Labels: map[string]string{"app": name}}
		must2(d.Endpoints().Put(t.Context(), spec))(t)
	}
}

// caller is who connects, and how.
type caller struct {
	*Datapath
	from    *netns.Namespace
	network string
}

// refused sends to an address until a program has counted a drop for a reason.
func (c caller) refused(t testing.TB, to netip.AddrPort, reason string) {
	t.Helper()
	d, from, network := c.Datapath, c.from, c.network
	before := counts(t, d)[reason]
	err := from.Do(func() error {
		dialer := net.Dialer{Timeout: 20 * time.Second}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			done <- from.Do(func() error {
				conn, err := dialer.DialContext(ctx, network, to.String())
				if err != nil {
					return err
				}
				defer conn.Close()
				if network == "udp" {
					_, err := conn.Write([]byte("x"))
					return err
				}
				return nil
			})
		}()
		testkit.Eventually(t, 20*time.Second, func() error {
			if counts(t, d)[reason] == before {
				return errors.New("nothing was dropped")
			}
			return nil
		})
		cancel()
		if err := <-done; err == nil && network == "tcp" {
			return errors.New("connected")
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s to %s: %v, want %s", network, to, err, reason)
	}
}

func (c caller) allowed(t testing.TB, to netip.AddrPort) {
	t.Helper()
	if _, err := testkit.RoundTrip(t, c.from, c.network, to.String(), []byte("hello")); err != nil {
		t.Errorf("%s to %s: %v, want an answer", c.network, to, err)
	}
}

const (
	denyIngressA = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny-a}, spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress]}}`
	fromBToA     = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: b-to-a}, spec: {podSelector: {matchLabels: {app: a}}, ` +
		`ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]}}`
	fromAnyToA = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: any-to-a}, spec: {podSelector: {matchLabels: {app: a}}, ` +
		`ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: "::/0"}}]}]}}`
	denyEgressB = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny-b}, spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Egress]}}`
)

// TestPolicies sends real traffic under policies that come and go.
func TestPolicies(t *testing.T) {
	onLinks(t, "veth, bridge, macvlan, segment, ipvlan-l2, ipvlan-l3, ipvlan-l3s, netkit, netkit-l2, ovs-veth, ovs-internal, tap, tun", func(t *testing.T, mode linkMode) {
		n, d := mode.make(t), openTest(t)
		n.labelled(t, d)
		for _, f := range families() {
			for _, network := range []string{"tcp", "udp"} {
				t.Run(f.name+"/"+network, func(t *testing.T) { testPolicies(t, n, caller{d, n.pods[1], network}, f) })
			}
		}
	})
}

func testPolicies(t *testing.T, n network, b caller, f family) {
	d, network := b.Datapath, b.network
	applyPolicies(t, d)
	backend := testkit.Echo(t, n.pods[0], network, net.JoinHostPort(f.pod, "0"))
	frontend := netip.MustParseAddrPort(net.JoinHostPort(f.service, servicePort))
	p, _ := service.ParseProtocol(network)
	s := service.Service{Frontend: frontend, Protocol: p, Backends: service.Backends(backend)}
	must2(d.Services().Put(t.Context(), service.CLI, s))(t)
	both := []netip.AddrPort{backend, frontend}
	for _, to := range both {
		b.allowed(t, to)
	}
	applyPolicies(t, d, denyIngressA)
	for _, to := range both {
		b.refused(t, to, "drop_policy_ingress")
	}
	caller{d, n.host, network}.allowed(t, backend) // the node reaches its pods
	caller{d, n.pods[0], network}.allowed(t, frontend)
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
