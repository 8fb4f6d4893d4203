// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

const pods = 6

// openPods returns the policies of a datapath with some endpoints.
func openPods(t *testing.T) Policies {
	t.Helper()
	o, err := objects.Create(t.Context(), testkit.BPFFS(t)+"/root", objects.Sizes{Services: 16, Backends: 16, Connections: 64, Endpoints: 16}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	if err := o.OpenTables(); err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		at := rows.EncodeAddr(address4(i))
		row, _, err := o.Endpoints.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		row.Id = uint32(i + 1)
		if err := o.Endpoints.Put(at, row); err != nil {
			t.Fatal(err)
		}
	}
	return Policies{
		Objects: o, Node: func() ([]netip.Addr, error) { return nil, nil },
		Listening: func(func(uint64, func() []uint16) error) error { return nil },
	}
}

func address4(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}) }

// TestHandlesFollowEachOther lets two handles that remember, and one that does not, change the policies of two owners and the labels of
// pods in turn. After each change the rows and the pieces of documents are those that a handle that knows nothing finds right.
func TestHandlesFollowEachOther(t *testing.T) {
	testkit.RequireRoot(t)
	p := openPods(t)
	handles := []Policies{p, p, p}
	handles[0].Memory, handles[1].Memory = &Memory{}, &Memory{}
	g := rand.New(rand.NewPCG(1, 2))
	want := map[service.Owner][]policy.Policy{}
	followed := 0
	for step := range testkit.Repeats(150, 3000) {
		h := handles[g.IntN(len(handles))]
		switch g.IntN(8) {
		case 0:
			known := policy.Pod{Namespace: "n", Labels: map[string]string{"app": fmt.Sprint(g.IntN(3))}}
			i := g.IntN(pods)
			_, err := h.Admit(uint32(i+1), []netip.Addr{address4(i)}, &known, func(map[netip.Addr]policy.Sets) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
		case 1:
			stray := documentKey{ofOwner, uint32(service.CLI), uint32(1e6 + step), 2*piecesOfPart + 1}
			if err := errors.Join(h.mark(), h.tables().documents.Put(stray, documentPiece{})); err != nil { // as a process that is killed
				t.Fatal(err)
			}
		default:
			owner := service.CLI
			if g.IntN(3) == 0 {
				owner = service.Agent
			}
			want[owner] = vary(g, want[owner], owner)
			if h.Memory != nil && h.Memory.compiler != nil {
				followed++
			}
			if _, err := h.Apply(t.Context(), owner, Set{Snapshot: policy.Snapshot{Policies: want[owner]}}); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			checkRows(t, p, want, fmt.Sprintf("step %d", step))
		}
	}
	if followed < 20 {
		t.Errorf("%d changes began with what a handle remembered", followed)
	}
}

// vary returns policies of which one differs, or all.
func vary(g *rand.Rand, old []policy.Policy, owner service.Owner) (out []policy.Policy) {
	n := 1 + g.IntN(40)
	if len(old) > 0 && g.IntN(3) > 0 {
		n = len(old)
	}
	changed := g.IntN(n)
	for i := range n {
		if i < len(old) && i != changed {
			out = append(out, old[i])
			continue
		}
		each := policy.Policy{Tier: policy.Namespaced, Namespace: "n", Name: fmt.Sprintf("%s%d", owner, i), IsolatesIngress: true}
		each.Subject.Pods.Labels = map[string]string{"app": fmt.Sprint(g.IntN(3))}
		for range g.IntN(3) {
			at := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(g.IntN(4)), 0}), 24)
			port := uint16(80 + g.IntN(4))
			each.Ingress = append(each.Ingress, policy.Rule{
				Peers: []policy.Peer{{Block: &policy.Block{CIDR: at}}}, Ports: []policy.Port{{Protocol: service.TCP, First: port, Last: port}},
			})
		}
		out = append(out, each)
	}
	if g.IntN(12) == 0 {
		return nil
	}
	return out
}

// checkRows compares the maps with what a process makes of the documents that knows nothing else.
func checkRows(t *testing.T, p Policies, want map[service.Owner][]policy.Policy, where string) {
	t.Helper()
	docs, err := p.read()
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	for owner, policies := range want {
		stored, given := docs.sets[owner].content, newContent(Set{Snapshot: policy.Snapshot{Policies: policies}})
		if !stored.equal(&given) {
			t.Fatalf("%s: owner %s has other policies stored", where, owner)
		}
	}
	s, err := p.snapshot(docs)
	if err != nil {
		t.Fatal(err)
	}
	have, err := p.readRows()
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := policy.Compile(s, have)
	if err != nil {
		t.Fatal(err)
	}
	for a, sets := range fresh.Endpoints { // rows of endpoints stay
		if sets == (policy.Sets{}) {
			delete(fresh.Endpoints, a)
		}
	}
	fresh.Rules = nil
	if d := policy.Diff(have, fresh); docs.pending || d.Len() != 0 {
		t.Fatalf("%s: pending %t, %d rows differ: %+v", where, docs.pending, d.Len(), d)
	}
	if err := p.finish(true); err != nil {
		t.Fatal(err)
	}
	after, _, err := p.scan()
	if err != nil || len(after.keys) != len(docs.keys) {
		t.Fatalf("%s: %d pieces, of which %d are of documents: %v", where, len(docs.keys), len(after.keys), err)
	}
}

// TestKeptOnce keeps what the caller has where it says the same as what a process before has stored.
func TestKeptOnce(t *testing.T) {
	testkit.RequireRoot(t)
	stored := openPods(t)
	said := func() Set {
		web := policy.Selector{Labels: map[string]string{"app": "web"}}
		return Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{{Tier: policy.Namespaced, Namespace: "n", Name: "web", Subject: policy.PodSelector{Pods: web}, IsolatesIngress: true}}}}
	}
	if _, err := stored.Apply(t.Context(), service.Agent, said()); err != nil {
		t.Fatal(err)
	}
	p := stored
	p.Memory = &Memory{}
	want := said()
	for range 2 { // what has parts is found again
		if result, err := p.Apply(t.Context(), service.Agent, want); err != nil || result.Unchanged != 1 || result.Rows != 0 {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	kept := p.Memory.docs.sets[service.Agent].now.Policies
	if len(kept) != 1 || reflect.ValueOf(kept[0].Subject.Pods.Labels).Pointer() != reflect.ValueOf(want.Policies[0].Subject.Pods.Labels).Pointer() {
		t.Errorf("it keeps %+v of its own", kept)
	}
	want = said()
	want.Policies[0].Name = "other"
	if result, err := p.Apply(t.Context(), service.Agent, want); err != nil || result.Added != 1 || result.Deleted != 1 {
		t.Errorf("then %+v, %v", result, err)
	}
	if docs, err := stored.read(); err != nil || len(docs.sets[service.Agent].now.Policies) != 1 {
		t.Errorf("stored is %+v, %v", docs.sets, err)
	}
}
