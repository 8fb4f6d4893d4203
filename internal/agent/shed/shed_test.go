// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// small has room for some bytes of rules, and counts calls.
type small struct {
	Policies
	room, calls int
	full        objects.FullError
	last        policies.Set
}

func (s *small) Apply(_ context.Context, _ service.Owner, want policies.Set) (policies.Result, error) {
	s.calls++
	bulk := 0
	for _, p := range want.Policies {
		bulk += p.Bulk()
	}
	if bulk > s.room {
		return policies.Result{}, &s.full
	}
	s.last = want
	return policies.Result{}, nil
}

// with returns a NetworkPolicy with as many peers.
func with(namespace, name string, peers int) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true, Ingress: make([]policy.Rule, 1)}
	for i := range peers {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Block: &policy.Block{CIDR: block}})
	}
	return p
}

// TestNoRoom takes rules from the namespace with the most of them, whoever has the largest policy, and in few steps.
func TestNoRoom(t *testing.T) {
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "large", 20)}}}
	for i := range 1000 {
		want.Policies = append(want.Policies, with("tenant", fmt.Sprint("p", i), 10))
	}
	rows := &small{room: 5000, full: objects.FullError{Map: "identities", Size: 16}}
	full, lost, err := new(Shedder).Apply(t.Context(), rows, "here", want)
	if err != nil || lost == nil || rows.calls > 12 {
		t.Errorf("%d calls, %v: %v", rows.calls, lost, err)
	}
	if len(rows.last.Policies) != 1001 || len(rows.last.Policies[0].Ingress[0].Peers) != 20 || !rows.last.Policies[1000].IsolatesIngress {
		t.Errorf("there are %d policies, the first is %+v", len(rows.last.Policies), rows.last.Policies[0])
	}
	for _, w := range full {
		if w.Namespace != "tenant" {
			t.Errorf("it says %v", w)
		}
	}
}

// TestDocumentsFull blames no policy where pods have filled the documents, and else the namespace that has.
func TestDocumentsFull(t *testing.T) {
	rows := &small{full: objects.FullError{Map: policies.Documents, Size: 16384}}
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "large", 1000)}}}
	full, lost, err := new(Shedder).Apply(t.Context(), rows, "here", want)
	if none := (*objects.FullError)(nil); !errors.As(err, &none) || lost != nil || full != nil || rows.calls != 1 {
		t.Errorf("%d calls: %v, %v, %v", rows.calls, full, lost, err)
	}
	huge := with("tenant", "huge", 0)
	random := rand.New(rand.NewPCG(1, 2))
	for range 16_000 {
		huge.Subject.Pods.Requirements = append(huge.Subject.Pods.Requirements, policy.Requirement{Key: randomText(random, 60), Operator: "DoesNotExist"})
	}
	rows.room = 100_000
	want.Policies = append(want.Policies, huge, with("tenant", "one", 1))
	full, _, err = new(Shedder).Apply(t.Context(), rows, "here", want)
	if err != nil || len(full) != 1 || full[0].Name != "huge" || len(rows.last.Policies[1].Subject.Pods.Requirements) > 0 {
		t.Errorf("%v, %v", full, err)
	}
	if !slices.ContainsFunc(rows.last.Policies[1:], func(p policy.Policy) bool { return len(p.Ingress) > 0 }) {
		t.Error("its small policy has lost its rules too")
	}
}

// selects returns a selector of one label.
func selects(key, value string) policy.Selector {
	return policy.Selector{Labels: map[string]string{key: value}}
}

// TestLabelsOfManyNamespaces has pods of many namespaces fill the documents with labels, each namespace with less than a share that would be its fault:
// those of some are forgotten, and in few steps.
func TestLabelsOfManyNamespaces(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 1)
	ask := policy.Policy{Tier: policy.Namespaced, Namespace: "t0", Name: "ask", IsolatesIngress: true}
	ask.Subject = policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "t0"), Pods: policy.Selector{Labels: map[string]string{}}}
	for i := range 64 {
		ask.Subject.Pods.Labels[fmt.Sprint("k", i)] = ""
	}
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 26 * 115 {
		labels := map[string]string{}
		for k := range ask.Subject.Pods.Labels {
			labels[k] = randomText(random, 63)
		}
		at := netip.AddrFrom4([4]byte{10, 200, byte(n >> 8), byte(n)})
		want.Pods = append(want.Pods, policy.Pod{Namespace: fmt.Sprint("t", n%26), Name: fmt.Sprint("p", n), Node: "far", Labels: labels, Addresses: []netip.Addr{at}})
	}
	want.Policies = append(want.Policies, ask)
	to := &counting{Policies: want.datapath.Policies()}
	var s Shedder
	full, lost, err := s.Apply(t.Context(), to, want.Pods[0].Node, want.Set)
	if err != nil || lost == nil || to.calls > 5 || slices.ContainsFunc(full, func(w kube.Warning) bool { return w.Namespace == "shop" }) {
		t.Errorf("%d calls, %v, %v: %v", to.calls, full, lost, err)
	}
	to.calls = 0
	if held, lost, err := s.Apply(t.Context(), to, want.Pods[0].Node, want.Set); err != nil || lost == nil || to.calls != 1 || len(held) != len(full) {
		t.Errorf("a moment later: %d calls, %v, %v: %v", to.calls, held, lost, err)
	}
}

// randomText returns letters and digits, which do not compress.
func randomText(random *rand.Rand, n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[random.IntN(len(letters))]
	}
	return string(b)
}

// TestNobodysDocuments blames no policies where each namespace has few, though documents stay full.
func TestNobodysDocuments(t *testing.T) {
	rows := &small{full: objects.FullError{Map: policies.Documents, Size: 16384}}
	var want policies.Set
	for n := range 200 {
		want.Policies = append(want.Policies, with(fmt.Sprint("team", n), "list", 200))
	}
	full, lost, err := new(Shedder).Apply(t.Context(), rows, "here", want)
	if none := (*objects.FullError)(nil); !errors.As(err, &none) || lost != nil || full != nil || rows.calls != 1 {
		t.Errorf("%d calls: %d, %v, %v", rows.calls, len(full), lost, err)
	}
}

// TestLabelsFull forgets the labels of the namespace whose pods have the most: its pods are isolated, and others keep theirs.
func TestLabelsFull(t *testing.T) {
	testkit.RequireRoot(t)
	bpffs := testkit.BPFFS(t)
	p, err := datapath.Open(t.Context(), datapath.Options{Root: filepath.Join(bpffs, "mustang")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	random := rand.New(rand.NewPCG(1, 2))
	text := func(n int) string { return randomText(random, n) }
	ask := policy.Policy{Tier: policy.Namespaced, Namespace: "tenant", Name: "ask", IsolatesIngress: true}
	ask.Subject = policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "tenant"), Pods: policy.Selector{Labels: map[string]string{}}}
	for range 64 {
		ask.Subject.Pods.Labels[text(253)+"/"+text(63)] = ""
	}
	web := policy.Policy{Tier: policy.Namespaced, Namespace: "shop", Name: "web", IsolatesIngress: true, Ingress: []policy.Rule{{
		Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "shop"), Pods: selects("app", "client")}}},
	}}}
	web.Subject = policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "shop"), Pods: selects("app", "web")}
	admin := policy.Policy{Tier: policy.Admin, Name: "quarantine", Ingress: []policy.Rule{{
		Action: policy.Deny, Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: selects("quarantine", "yes")}}},
	}}}
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{ask, web, admin}, Namespaces: []policy.Namespace{{Name: "shop"}, {Name: "tenant"}}}}
	for i := range 2000 {
		labels := map[string]string{"quarantine": "yes"}
		for k := range ask.Subject.Pods.Labels {
			labels[k] = text(63)
		}
		at := netip.AddrFrom4([4]byte{10, 200, byte(i / 250), byte(i%250 + 1)})
		want.Pods = append(want.Pods, policy.Pod{Namespace: "tenant", Name: fmt.Sprint("p", i), Labels: labels, Addresses: []netip.Addr{at}})
	}
	for i, app := range []string{"web", "client", "other"} {
		want.Pods = append(want.Pods, policy.Pod{Namespace: "shop", Name: app, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 201, 0, byte(i + 1)})}})
	}
	full, lost, err := new(Shedder).Apply(t.Context(), p.Policies(), "here", want)
	if err != nil || lost == nil || len(full) != 1 || full[0].Namespace != "tenant" || full[0].Name != "ask" {
		t.Errorf("%v, %v: %v", full, lost, err)
	}
	now, err := p.Policies().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, to string
		allowed  bool
	}{{"10.201.0.2", "10.201.0.1", true}, {"10.201.0.3", "10.201.0.1", false}, {"10.200.0.1", "10.201.0.2", false}, {"10.201.0.2", "10.200.0.1", false}} {
		flow := policy.Flow{Source: netip.MustParseAddr(c.from), Destination: netip.MustParseAddr(c.to), Protocol: service.TCP, Port: 80}
		if egress, ingress, err := policy.Explain(now, flow); err != nil || (egress.Allow && ingress.Allow) != c.allowed {
			t.Errorf("%s to %s: %+v, %+v: %v", c.from, c.to, egress, ingress, err)
		}
	}
}

// TestOverlaps closes the pods of a tenant whose ranges overlap too much for the node, and leaves alone whoever has more ranges.
func TestOverlaps(t *testing.T) {
	nested := with("tenant", "nested", 0)
	for i := range 1000 {
		out := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), 32)
		block := &policy.Block{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Except: []netip.Prefix{out}}
		nested.Ingress[0].Peers = append(nested.Ingress[0].Peers, policy.Peer{Block: block})
	}
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "large", 5000), nested, with("away", "large", 5000)}}}
	for i := range want.Policies {
		want.Policies[i].Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: want.Policies[i].Namespace}
	}
	for _, namespace := range []string{"shop", "tenant"} {
		want.Pods = append(want.Pods, policy.Pod{Namespace: namespace, Name: "starting", Node: "here"})
	}
	rows := &small{room: 1 << 30}
	full, lost, err := new(Shedder).Apply(t.Context(), rows, "here", want)
	if err != nil || lost == nil || rows.calls != 1 || len(full) != 1 || full[0].Name != "nested" || !strings.Contains(full[0].Text, "at most 262144") {
		t.Errorf("%d calls, %v: %v, %v", rows.calls, full, lost, err)
	}
	if p := rows.last.Policies[1]; len(p.Ingress) > 0 || !p.IsolatesIngress || len(rows.last.Policies[0].Ingress[0].Peers) != 5000 {
		t.Errorf("there is %+v", p)
	}
	if full, _, err := new(Shedder).Apply(t.Context(), rows, "elsewhere", want); err != nil || full != nil {
		t.Errorf("a node without their pods: %v, %v", full, err)
	}
}
