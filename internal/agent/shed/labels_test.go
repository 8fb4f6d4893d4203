// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// onNode has the endpoints of a node, and what is wanted there.
type onNode struct {
	datapath *datapath.Datapath
	policies.Set
}

func newOnNode(t *testing.T) *onNode {
	t.Helper()
	testkit.RequireRoot(t)
	p, err := datapath.Open(t.Context(), datapath.Options{Root: filepath.Join(testkit.BPFFS(t), "mustang")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return &onNode{datapath: p}
}

// add adds pods of a namespace, and a policy for each that lets all pods of the cluster in.
func (want *onNode) add(t *testing.T, namespace string, pods int) {
	t.Helper()
	node, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		n := len(want.Pods) + 1
		at := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
		row, _, err := want.datapath.Policies().Objects.Endpoints.Get(rows.EncodeAddr(at))
		if err != nil {
			t.Fatal(err)
		}
		row.Id = uint32(n)
		if err := want.datapath.Policies().Objects.Endpoints.Put(rows.EncodeAddr(at), row); err != nil {
			t.Fatal(err)
		}
		app := fmt.Sprint("app", i)
		want.Pods = append(want.Pods, policy.Pod{Namespace: namespace, Name: app, Node: node, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{at}})
		want.Policies = append(want.Policies, policy.Policy{
			Tier: policy.Namespaced, Namespace: namespace, Name: app, IsolatesIngress: true,
			Subject: policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, namespace), Pods: selects("app", app)},
			Ingress: []policy.Rule{{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{}}}, Ports: []policy.Port{{Protocol: service.TCP, First: 8080, Last: 8080}}}},
		})
	}
}

const label = "statefulset.kubernetes.io/pod-name"

// farPods adds 9,000 pods of other nodes, and returns rules that tell them all apart.
func farPods(want *policies.Set) []policy.Rule {
	all := policy.Requirement{Key: label, Operator: "In"}
	for i := range 9000 {
		name := fmt.Sprint("p", i)
		all.Values = append(all.Values, name)
		want.Pods = append(want.Pods, policy.Pod{
			Namespace: fmt.Sprint("n", i%100), Name: name, Node: "far", Labels: map[string]string{"app": fmt.Sprint("far", i%300), label: name},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 100, byte(i / 250), byte(i%250 + 1)})},
		})
	}
	all.Sort()
	return []policy.Rule{{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{all}}}}}}}
}

// TestTimesLabelsOfOthers has many namespaces name some of the cluster's apps each, and a tenant blocks around pods, or values of another label: with the labels of
// others these tell all pods apart. The tenant alone loses rules.
func TestTimesLabelsOfOthers(t *testing.T) {
	for name, peer := range map[string]func(i int) policy.Peer{
		"blocks": func(i int) policy.Peer {
			return policy.Peer{Block: &policy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, byte(i), 0}), 24)}}
		},
		"labels": func(i int) policy.Peer {
			return policy.Peer{Pods: &policy.PodSelector{Pods: selects("zone", fmt.Sprint(i))}}
		},
	} {
		t.Run(name, func(t *testing.T) { timesLabels(t, peer) })
	}
}

func timesLabels(t *testing.T, peer func(i int) policy.Peer) {
	want := newOnNode(t)
	for n := range 40 {
		want.add(t, fmt.Sprint("shop", n), 1)
		p := &want.Policies[len(want.Policies)-1]
		for k := range 8 {
			p.Ingress = append(p.Ingress, policy.Rule{Action: policy.Accept, Ports: []policy.Port{{Protocol: service.TCP, First: 9090, Last: 9090}},
				Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: selects("app", fmt.Sprint("far", n*8+k))}}}})
		}
	}
	want.add(t, "tenant", 1)
	blocks := &want.Policies[len(want.Policies)-1].Ingress[0]
	blocks.Peers = nil
	farPods(&want.Set)
	for i := range want.Pods {
		if labels := want.Pods[i].Labels; strings.HasPrefix(labels["app"], "far") {
			labels["zone"] = fmt.Sprint(want.Pods[i].Addresses[0].As4()[2])
		}
	}
	for i := range 36 {
		blocks.Peers = append(blocks.Peers, peer(i))
	}
	node := want.Pods[0].Node
	want.Trim(node)
	full, lost, err := new(Shedder).Apply(t.Context(), want.datapath.Policies(), node, want.Set)
	if err != nil || lost == nil || len(full) != 1 || full[0].Namespace != "tenant" {
		t.Errorf("%v, %v, %v", full, lost, err)
	}
}

// TestLabelsOfOthers has a tenant name a label that tells 9,000 pods of the cluster apart. Where it only asks for some in its subject, nothing changes
// for others. Where its rules tell them apart on a node with many policies of others, it is the tenant that loses rules.
func TestLabelsOfOthers(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 32)
	want.add(t, "tenant", 1)
	evil := want.Policies[len(want.Policies)-1]
	want.Policies = want.Policies[:len(want.Policies)-1]
	apart := farPods(&want.Set)
	apply := func(policies ...policy.Policy) []kube.Warning {
		t.Helper()
		now := want.Set
		now.Policies = append(now.Policies[:len(now.Policies):len(now.Policies)], policies...)
		now.Trim(want.Pods[0].Node)
		full, _, err := new(Shedder).Apply(t.Context(), want.datapath.Policies(), want.Pods[0].Node, now)
		if err != nil {
			t.Fatal(err)
		}
		return full
	}
	apply()
	elsewhere := evil
	elsewhere.Namespace, elsewhere.Subject = "nowhere", policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "nowhere"), Pods: selects(label, "nobody")}
	if full := apply(elsewhere); len(full) != 0 {
		t.Errorf("a subject that is not here: %d policies have no rules in force, the first is %+v", len(full), full[0])
	}
	evil.Ingress = apart
	for round := range 2 {
		if full := apply(evil); len(full) != 1 || full[0].Namespace != "tenant" {
			t.Errorf("round %d: without rules in force: %d: %+v", round, len(full), full)
		}
	}
}

// TestRoomForJoining has a tenant fill the verdicts to just below what there is room for: it loses rules, and pods of others join.
func TestRoomForJoining(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "tenant", 28) // each has a verdict about each of the far pods
	want.add(t, "shop", 1)
	web := want.Pods[len(want.Pods)-1]
	at := web.Addresses
	web.Addresses = nil
	want.Pods[len(want.Pods)-1] = web // it has no address yet
	if err := want.datapath.Policies().Objects.Endpoints.Delete(rows.EncodeAddr(at[0])); err != nil {
		t.Fatal(err)
	}
	want.Policies[0].Ingress = append(want.Policies[0].Ingress, farPods(&want.Set)...)
	full, _, err := new(Shedder).Apply(t.Context(), want.datapath.Policies(), web.Node, want.Set)
	if err != nil || len(full) == 0 || slices.ContainsFunc(full, func(w kube.Warning) bool { return w.Namespace != "tenant" }) {
		t.Errorf("%v, without rules in force: %+v", err, full)
	}
	join := func(map[netip.Addr]policy.Sets) error { return nil }
	if _, err := want.datapath.Policies().Admit(99, at, &web, join); err != nil {
		t.Errorf("a pod of another joins: %v", err)
	}
}

// counting counts calls, and the rows that they write.
type counting struct {
	Policies
	calls, rows int
}

func (c *counting) Apply(ctx context.Context, owner service.Owner, want policies.Set) (policies.Result, error) {
	c.calls++
	result, err := c.Policies.Apply(ctx, owner, want)
	c.rows += result.Rows
	return result, err
}

// TestStrippedIsHeld changes a pod elsewhere, and then the policy of a tenant that there was no room for: neither tries all policies again at once. A minute
// later they are tried.
func TestStrippedIsHeld(t *testing.T) {
	rows := &small{room: 2000}
	of := &counting{Policies: rows}
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "web", 2), with("tenant", "fits", 1), with("tenant", "large", 1000)}}}
	s := new(Shedder)
	apply := func(calls int, lost ...string) {
		t.Helper()
		of.calls = 0
		full, err1, err2 := s.Apply(t.Context(), of, "here", want)
		var names []string
		for _, w := range full {
			names = append(names, w.Namespace+"/"+w.Name)
		}
		if err2 != nil || (err1 != nil) != (len(lost) > 0) || !slices.Equal(names, lost) || of.calls != calls {
			t.Errorf("%d calls, lost %q, %v, %v", of.calls, names, err1, err2)
		}
	}
	apply(2, "tenant/large")
	want.Pods = []policy.Pod{{Namespace: "far", Name: "p"}}
	apply(1, "tenant/large")
	want.Policies = []policy.Policy{with("shop", "web", 3), with("tenant", "fits", 2), with("tenant", "large", 3)}
	apply(1, "tenant/fits", "tenant/large")
	if !s.Retry {
		t.Error("what has changed is not tried again by itself")
	}
	s.tried = s.tried.Add(-Hold)
	if apply(1); s.Retry {
		t.Error("it is tried again without need")
	}
	want.Policies = append(want.Policies, with("another", "large", 1000), with("tenant", "huge", 2000))
	apply(3, "tenant/huge", "another/large")
	want.Pods = nil
	apply(1, "another/large", "tenant/huge")
	want.Policies = append(want.Policies, with("third", "large", 1000))
	apply(2, "another/large", "tenant/huge", "third/large")
	apply(1, "another/large", "tenant/huge", "third/large")
	want.Policies = want.Policies[:len(want.Policies)-1]
	if apply(1, "another/large", "tenant/huge"); !s.Retry {
		t.Error("what there may be room for now is not tried again by itself")
	}
}

// TestLabelsInOneNamespace has rules name labels for pods of their own namespace. Pods of another one, with all combinations of these labels, are not told
// apart: nobody loses rules.
func TestLabelsInOneNamespace(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 64)
	want.add(t, "victim", 1)
	rule := &want.Policies[len(want.Policies)-1].Ingress[0]
	rule.Peers = nil
	for k := range 12 {
		own := policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "victim"), Pods: selects(fmt.Sprint("k", k), "v")}
		rule.Peers = append(rule.Peers, policy.Peer{Pods: &own})
	}
	for i := range 1 << 12 {
		labels := map[string]string{}
		for k := range 12 {
			if i>>k&1 == 1 {
				labels[fmt.Sprint("k", k)] = "v"
			}
		}
		at := netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)})
		want.Pods = append(want.Pods, policy.Pod{Namespace: "other", Name: fmt.Sprint("p", i), Node: "far", Labels: labels, Addresses: []netip.Addr{at}})
	}
	full, _, err := new(Shedder).Apply(t.Context(), want.datapath.Policies(), want.Pods[0].Node, want.Set)
	if err != nil || len(full) > 0 {
		t.Errorf("%d policies have no rules in force: %v, %v", len(full), full[:min(1, len(full))], err)
	}
}

// TestRoomOfLargeCluster has more addresses of pods than policies may have ranges: policies hold, pods join, and a tenant's ranges fit beside them. Those of
// a tenant who has too many do not.
func TestRoomOfLargeCluster(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 2)
	for i := range 35_000 {
		v4 := netip.AddrFrom4([4]byte{10, 100 + byte(i>>16), byte(i >> 8), byte(i)})
		v6 := netip.AddrFrom16([16]byte{0xfd, 1, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
		want.Pods = append(want.Pods, policy.Pod{Namespace: "far", Name: fmt.Sprint("p", i), Node: "far", Addresses: []netip.Addr{v4, v6}})
	}
	want.add(t, "tenant", 1)
	tenant := &want.Policies[len(want.Policies)-1].Ingress[0]
	for ranges, lose := range map[int]int{0: 0, 5000: 0, 60_000: 1} {
		tenant.Peers = nil
		for i := range ranges {
			block := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 0, byte(i >> 8), byte(i)}), 32)
			tenant.Peers = append(tenant.Peers, policy.Peer{Block: &policy.Block{CIDR: block}})
		}
		full, _, err := new(Shedder).Apply(t.Context(), want.datapath.Policies(), want.Pods[0].Node, want.Set)
		if err != nil || len(full) != lose || lose > 0 && full[0].Namespace != "tenant" {
			t.Errorf("%d ranges: %d policies have no rules in force: %v", ranges, len(full), err)
		}
		if err := want.admit(t); err != nil {
			t.Errorf("%d ranges: %v", ranges, err)
		}
	}
}

// admit has a pod join that is known to nobody, and takes nothing for it.
func (want *onNode) admit(t *testing.T) error {
	t.Helper()
	p := want.datapath.Policies()
	lock, err := p.Objects.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	pod := &policy.Pod{Namespace: "other", Name: "new"}
	_, err = p.Admit(1<<20, []netip.Addr{netip.MustParseAddr("10.0.9.9")}, pod, func(map[netip.Addr]policy.Sets) error { return nil })
	return err
}

// TestAnotherWord has policies with many verdicts on a node, and then a tenant's small policy that comes and goes: it names a label, or a range, that all pods
// have. It tells apart nobody who was not, so that next to nothing is written, and nobody loses rules.
func TestAnotherWord(t *testing.T) {
	for name, peer := range map[string]policy.Peer{
		"label": {Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: "Exists"}}}}},
		"range": {Block: &policy.Block{CIDR: netip.MustParsePrefix("10.0.0.0/8")}},
	} {
		t.Run(name, func(t *testing.T) {
			want := newOnNode(t)
			want.add(t, "shop", 17)
			want.add(t, "tenant", 1)
			small := want.Policies[len(want.Policies)-1]
			small.Ingress = []policy.Rule{{Action: policy.Accept, Peers: []policy.Peer{peer}}}
			want.Policies = want.Policies[:len(want.Policies)-1]
			want.Policies[0].Ingress = append(want.Policies[0].Ingress, farPods(&want.Set)...)
			s, to := new(Shedder), &counting{Policies: want.datapath.Policies()}
			apply := func(most int, more ...policy.Policy) {
				t.Helper()
				now := want.Set
				now.Policies = append(now.Policies[:len(now.Policies):len(now.Policies)], more...)
				to.rows = 0
				full, _, err := s.Apply(t.Context(), to, want.Pods[0].Node, now)
				if err != nil || len(full) > 0 || to.rows > most {
					t.Errorf("%d policies have no rules in force, %d rows: %v", len(full), to.rows, err)
				}
			}
			apply(1 << 20)
			for range 2 {
				apply(30_000, small)
				apply(30_000)
			}
		})
	}
}
