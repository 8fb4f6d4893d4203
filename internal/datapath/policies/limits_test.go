// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
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
	var full *objects.FullError
	_, err := p.Apply(t.Context(), service.Agent, ninth)
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
