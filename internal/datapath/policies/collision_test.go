// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func isolating(namespace, name string) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true}
	p.Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: namespace}
	return p
}

func listing(namespace string, network byte, addresses int) policy.Policy {
	p := isolating(namespace, "list")
	p.Ingress = make([]policy.Rule, 1)
	for i := range addresses {
		at := netip.PrefixFrom(netip.AddrFrom4([4]byte{network, 0, byte(i >> 8), byte(i)}), 32)
		p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Block: &policy.Block{CIDR: at}})
	}
	return p
}

func wantListed(t *testing.T, p Policies, want int) {
	t.Helper()
	listed := testkit.Must(p.List())(t)
	testkit.Check(t, len(listed) == want, "%d policies, want %d", len(listed), want)
}

// TestNamespaceIsAboveItsQuota writes nothing if one namespace has more ranges than an eighth of the map, and accepts
// its policies without rules.
func TestNamespaceIsAboveItsQuota(t *testing.T) {
	p := openPods(t)
	join(t, p, 0, policy.Pod{Namespace: "tenant", Name: "p"})
	shop := policy.Policy{Tier: policy.Namespaced, Namespace: "shop", Name: "deny", IsolatesIngress: true}
	want := Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{shop, listing("tenant", 20, 9000)}}, Quota: 8}
	_, err := p.Apply(t.Context(), service.Agent, want)
	var quota *policy.QuotaError
	if !errors.As(err, &quota) || len(quota.Over) != 1 || quota.Over[0].Namespace != "tenant" ||
		quota.Over[0].What != "ranges of addresses" {
		t.Error(err)
	}
	wantListed(t, p, 0)
	want.Policies[1].Ingress = nil
	testkit.Must(p.Apply(t.Context(), service.Agent, want))(t) // without rules
}

// TestFullNodeKeepsWhatIsInForce has eight namespaces with lists below their quotas fill a map, which is small here.
// A ninth namespace does not fit: nothing changes.
func TestFullNodeKeepsWhatIsInForce(t *testing.T) {
	p := openPods(t)
	small := testkit.Must(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 20, ValueSize: 4, MaxEntries: 1 << 13,
		Flags: unix.BPF_F_NO_PREALLOC}))(t)
	t.Cleanup(func() { _ = small.Close() })
	p.Objects.Policies["identities"] = small
	want := Set{Quota: 8}
	for n := range 9 {
		id, namespace := uint32(n+1), fmt.Sprint("n", n)
		testkit.Succeed(t, p.Objects.Endpoints.Put(rows.EncodeAddr(address4(n)), objects.Endpoint{Id: id}))
		join(t, p, n, policy.Pod{Namespace: namespace, Name: "p"})
		want.Policies = append(want.Policies, listing(namespace, 20+byte(n), 875))
	}
	ninth := want
	want.Policies = want.Policies[:8:8]
	testkit.Must(p.Apply(t.Context(), service.Agent, want))(t)
	_, err := p.Apply(t.Context(), service.Agent, ninth)
	var full *objects.FullError
	testkit.Check(t, errors.As(err, &full) && full.Map == "identities", "nine namespaces: %v", err)
	wantDone(t, p)
	wantListed(t, p, 8)
}

// selecting returns a policy of a namespace with a number of rules that each select all pods; one of the rules
// distinguishes pods.
func selecting(namespace string, rules int) policy.Policy {
	p := isolating(namespace, "all")
	for n := range rules {
		none := policy.Requirement{Key: "app", Operator: "NotIn", Values: []string{fmt.Sprint("none", n)}}
		if n == 0 {
			none = policy.Requirement{Key: "app", Operator: "In"}
			for i := range 3000 {
				none.Values = append(none.Values, fmt.Sprint(i))
			}
			none.Sort()
		}
		p.Ingress = append(p.Ingress, policy.Rule{Action: policy.Accept,
			Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{none}}}}}})
	}
	return p
}

// TestJoiningIsTooMuchWork lets a joining pod bring the work of a node over its limit. The pod joins, a change that
// adds to it is refused without remains, a killed command is completed, and policies can be deleted.
func TestJoiningIsTooMuchWork(t *testing.T) {
	p := openPods(t)
	var want Set
	for i := range 3000 {
		at := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		want.Pods = append(want.Pods, policy.Pod{Namespace: "away", Name: fmt.Sprint(i), Labels: map[string]string{
			"app": fmt.Sprint(i)}, Addresses: []netip.Addr{at}})
	}
	for i := range pods {
		want.Policies = append(want.Policies, selecting(fmt.Sprint("n", i), 240))
	}
	for i := range pods {
		if i == pods-1 {
			testkit.Must(p.Apply(t.Context(), service.Agent, want))(t)
		}
		join(t, p, i, policy.Pod{Namespace: fmt.Sprint("n", i), Name: "p"})
	}
	more := want
	more.Policies = append(more.Policies[:pods:pods], policy.Policy{Tier: policy.Namespaced, Namespace: "n0", Name: "more",
		IsolatesIngress: true, Subject: want.Policies[0].Subject})
	var work *policy.LimitError
	_, err := p.Apply(t.Context(), service.Agent, more)
	testkit.Check(t, errors.As(err, &work), "more policies: %v", err)
	wantDone(t, p)
	testkit.Succeed(t, p.begin(documents{}, update{}))
	testkit.Must(p.Apply(t.Context(), service.Agent, want))(t)
	testkit.Must(p.Delete(t.Context(), service.Agent, func(q policy.Policy) bool { return q.Namespace == "n1" }))(t)
}

// TestReadFile refuses a pipe in place of a file, and is content without one.
func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cli.json")
	_, there, err := readFile(path)
	testkit.Check(t, !there && err == nil, "no file: %t, %v", there, err)
	testkit.Succeed(t, unix.Mkfifo(path, 0o600))
	_, _, err = readFile(path)
	testkit.Check(t, err != nil && err.Error() == path+": not a regular file", "a pipe: %v", err)
}

var (
	ownAddress  = netip.MustParseAddr("192.0.2.1")
	nodeAddress = netip.MustParseAddr("192.0.2.7") // of two nodes
	farAddress  = netip.MustParseAddr("10.9.9.9")  // of two pods
)

func app(name string) map[string]string { return map[string]string{"app": name} }

func join(t *testing.T, p Policies, i int, known policy.Pod) {
	t.Helper()
	testkit.Must(p.Admit(uint32(i+1), []netip.Addr{address4(i)}, &known,
		func(map[netip.Addr]policy.Sets) error { return nil }))(t)
}

func admit(t *testing.T, p Policies, i int, name string) {
	t.Helper()
	join(t, p, i, policy.Pod{Namespace: "n", Name: name, Labels: app(name)})
}

// allow returns a policy that lets some peers reach the pods of an application.
func allow(name, to string, peers ...policy.Peer) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: "n", Name: name, IsolatesIngress: true}
	p.Subject.Pods.Labels = app(to)
	if len(peers) > 0 {
		p.Ingress = []policy.Rule{{Peers: peers}}
	}
	return p
}

// denying returns a policy for each of some applications, which makes it unreachable.
func denying(names ...string) (s Set) {
	for _, name := range names {
		s.Policies = append(s.Policies, allow(name, name))
	}
	return s
}

func from(name string) policy.Peer {
	return policy.Peer{Pods: &policy.PodSelector{Pods: policy.Selector{Labels: app(name)}}}
}

// judged are policies whose verdicts are checked.
type judged struct {
	*testing.T
	Policies
}

// wants checks that the rows match the files, and that Explain reports whether a connection is allowed.
func (t judged) wants(where string, from, to netip.Addr, want bool) {
	t.Helper()
	p := t.Policies
	checkRows(t.T, p, nil, where)
	s := testkit.Must(p.Snapshot())(t)
	f := policy.Flow{Source: from, Destination: to, Protocol: service.TCP, Port: 80}
	_, explained := must2(policy.Explain(s, f))(t)
	testkit.Check(t, explained.Allow == want, "%s: %s to %s: %t, want %t", where, from, to, explained.Allow, want)
}

// TestCollisions gives owners different objects with one name and with one address, in both orders. All policies are
// in force, and each address belongs to one pod or node.
func TestCollisions(t *testing.T) {
	at := func(a ...netip.Addr) []netip.Addr { return a }
	sets := map[service.Owner]Set{
		service.CLI: {Snapshot: policy.Snapshot{
			Policies: []policy.Policy{allow("same", "b", from("old"))},
			Nodes:    []policy.Node{{Name: "z", Addresses: at(nodeAddress)}},
			Pods: []policy.Pod{
				{Namespace: "n", Name: "old", Labels: app("old"), Addresses: at(farAddress)},
				{Namespace: "n", Name: "other", Labels: app("a"), Addresses: at(address4(2))},
				{Namespace: "n", Name: "c", Labels: app("a")},
			},
		}},
		service.Agent: {Snapshot: policy.Snapshot{
			Policies: []policy.Policy{allow("same", "b", from("new"), from("a")), allow("deny", "d")},
			Nodes: []policy.Node{
				{Name: "evil", Addresses: at(nodeAddress, nodeAddress, ownAddress, address4(0), netip.MustParseAddr("192.0.2.66"))},
				{Name: "y", Addresses: at(nodeAddress)},
			},
			Pods: []policy.Pod{
				{Namespace: "n", Name: "new", Labels: app("new"), Addresses: at(farAddress)},
				{Namespace: "n", Name: "newer", Labels: app("a"), Addresses: at(nodeAddress, ownAddress)},
				{Namespace: "n", Name: "c", Labels: app("c")},
			},
		}},
	}
	for _, order := range [][]service.Owner{{service.CLI, service.Agent}, {service.Agent, service.CLI}} {
		p := openPods(t)
		p.Node = func() ([]netip.Addr, error) { return at(ownAddress), nil }
		for i, name := range []string{"a", "b", "c", "d"} {
			admit(t, p, i, name)
		}
		for _, owner := range order {
			testkit.Must(p.Apply(t.Context(), owner, sets[owner]))(t)
		}
		where := fmt.Sprint(order)
		a, b, c, d := address4(0), address4(1), address4(2), address4(3)
		judged{t, p}.wants(where+": a pod whose address a node has", a, b, true)
		judged{t, p}.wants(where+": a pod with labels in documents", c, b, false)
		judged{t, p}.wants(where+": the agent's pod", farAddress, b, true)
		judged{t, p}.wants(where+": its own node", ownAddress, d, true)
		judged{t, p}.wants(where+": a node with its own node's address", netip.MustParseAddr("192.0.2.66"), d, false)
		judged{t, p}.wants(where+": a node", nodeAddress, b, false)
		judged{t, p}.wants(where+": the agent's policy", a, d, false)
		all, err := p.List()
		testkit.Check(t, err == nil && len(all) == 3, "%s: %v, %v", where, all, err)
		admit(t, p, 4, "e")
		testkit.Must(p.Apply(t.Context(), service.Agent, Set{}))(t)
		judged{t, p}.wants(where+": the command line's policy alone", farAddress, b, true)
		judged{t, p}.wants(where+": the agent's policy has gone", a, b, false)
	}
}

// TestNodeAddresses gives the node other addresses. The same policies again find them.
func TestNodeAddresses(t *testing.T) {
	next := netip.MustParseAddr("192.0.2.2")
	p := openPods(t)
	own := []netip.Addr{ownAddress}
	p.Node = func() ([]netip.Addr, error) { return own, nil }
	admit(t, p, 0, "a")
	apply := func(rows int) {
		t.Helper()
		result, err := p.Apply(t.Context(), service.CLI,
			Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{allow("deny", "a")}}})
		testkit.Require(t, err == nil && (rows < 0 || result.Rows == rows), "%+v, want %d rows: %v", result, rows, err)
	}
	apply(-1)
	judged{t, p}.wants("before", ownAddress, address4(0), true)
	apply(0)
	own = []netip.Addr{next}
	apply(2)
	judged{t, p}.wants("a stranger", ownAddress, address4(0), false)
	judged{t, p}.wants("the node", next, address4(0), true)
	wantDone(t, p)
	apply(0)
}

// TestPodsOfOneName has an old pod whose DEL has not come, and a new one with its name: both have the labels of the
// Pod.
func TestPodsOfOneName(t *testing.T) {
	p := openPods(t)
	for i := range 2 {
		join(t, p, i, policy.Pod{Namespace: "n", Name: "p"})
	}
	set := Set{Snapshot: policy.Snapshot{
		Policies: []policy.Policy{allow("deny", "secret")},
		Pods:     []policy.Pod{{Namespace: "n", Name: "p", Labels: app("secret"), Addresses: []netip.Addr{address4(1)}}},
	}}
	for range 8 { // the order of a map varies
		testkit.Must(p.Apply(t.Context(), service.Agent, set))(t)
		for i := range 2 {
			judged{t, p}.wants("a pod of the name", farAddress, address4(i), false)
		}
		testkit.Must(p.Apply(t.Context(), service.Agent, Set{}))(t)
	}
}

// TestPodWithoutObject has a pod run on whose object has gone: it keeps the object's labels, also after another
// change, until its endpoint goes.
func TestPodWithoutObject(t *testing.T) {
	p := openPods(t)
	join(t, p, 0, policy.Pod{Namespace: "n", Name: "p"})
	pod := policy.Pod{Namespace: "n", Name: "p", Labels: app("secret"), Addresses: []netip.Addr{address4(0)}}
	deny := allow("deny", "secret")
	for i := range 4 {
		s := Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{deny}}}
		if i == 0 {
			s.Pods = []policy.Pod{pod}
		}
		if i == 2 { // a change of something else
			s.Policies = append(s.Policies, allow("other", "other"))
		}
		testkit.Must(p.Apply(t.Context(), service.Agent, s))(t)
		judged{t, p}.wants(fmt.Sprint("change ", i), farAddress, address4(0), false)
		checkRows(t, p, map[service.Owner][]policy.Policy{}, fmt.Sprint("change ", i))
	}
	testkit.Succeed(t, p.Forget([]uint32{1},
		func() error { return p.Objects.Endpoints.Delete(rows.EncodeAddr(address4(0))) }))
	docs, err := p.read()
	testkit.Check(t, err == nil && len(docs.now.pods) == 0, "it knows %v: %v", docs.now.pods, err)
}

// TestLinkLocal has pods with their own link-local address, with one shared by two, with one of the node, and with
// one that a document gives another pod. Only the first identifies its pod.
func TestLinkLocal(t *testing.T) {
	p := openPods(t)
	own, both, nodes, far := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2"),
		netip.MustParseAddr("fe80::3"), netip.MustParseAddr("fe80::4")
	p.Node = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.1"), nodes}, nil }
	for i, local := range []netip.Addr{own, both, both, nodes, far} {
		sender := objects.Sender{Endpoint: uint32(i + 1), LinkLocal: rows.EncodeAddr(local),
			Pod: rows.EncodeAddr(address4(i))}
		testkit.Succeed(t, p.Objects.Senders.Put(objects.SenderKey{Ifindex: uint32(i + 10)}, sender))
	}
	said := policy.Snapshot{Policies: []policy.Policy{selecting("default", 1)},
		Pods: []policy.Pod{{Namespace: "default", Name: "far", Addresses: []netip.Addr{far}}}}
	testkit.Must(p.Apply(t.Context(), service.CLI, Set{Snapshot: said}))(t)
	docs := testkit.Must(p.read())(t)
	s := testkit.Must(p.snapshot(docs, docs.now))(t)
	of := map[netip.Addr][]string{}
	for _, pod := range s.Pods {
		for _, a := range pod.Addresses {
			of[a] = append(of[a], pod.Name)
		}
	}
	first := of[address4(0)]
	if !slices.Equal(of[own], first) || len(first) != 1 || of[both] != nil || of[nodes] != nil ||
		!slices.Equal(of[far], []string{"far"}) {
		t.Errorf("%v", of)
	}
}
