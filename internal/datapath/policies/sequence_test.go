// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
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
	t.Cleanup(func() {
		if dir, err := o.FilesDir(); err == nil {
			_ = os.RemoveAll(dir)
		}
		_ = o.Close()
	})
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

// TestOwnersTakeTurns changes the policies of two owners and the labels of pods in turn, and has changes killed. After
// each change the rows are those that are compiled from nothing.
func TestOwnersTakeTurns(t *testing.T) {
	testkit.RequireRoot(t)
	p := openPods(t)
	g := rand.New(rand.NewPCG(1, 2))
	want := map[service.Owner][]policy.Policy{}
	for step := range testkit.Repeats(150, 3000) {
		owner := service.CLI
		if g.IntN(3) == 0 {
			owner = service.Agent
		}
		switch g.IntN(8) {
		case 0:
			known := policy.Pod{Namespace: "n", Labels: map[string]string{"app": fmt.Sprint(g.IntN(3))}}
			i := g.IntN(pods)
			_, err := p.Admit(uint32(i+1), []netip.Addr{address4(i)}, &known, func(map[netip.Addr]policy.Sets) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
		case 1: // a process is killed whose file is there, and no row of it
			want[owner] = vary(g, want[owner], owner)
			text, err := encode(Set{Snapshot: policy.Snapshot{Policies: want[owner]}})
			if err != nil {
				t.Fatal(err)
			}
			docs, err := p.read()
			if err := errors.Join(err, p.mark(docs), p.putSet(owner, text)); err != nil {
				t.Fatal(err)
			}
			if pending, err := p.Pending(); err != nil || !pending {
				t.Fatalf("step %d: pending %t, %v", step, pending, err)
			}
		default:
			want[owner] = vary(g, want[owner], owner)
			if _, err := p.Apply(t.Context(), owner, Set{Snapshot: policy.Snapshot{Policies: want[owner]}}); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			checkRows(t, p, want, fmt.Sprintf("step %d", step))
		}
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
		if text, err := encode(Set{Snapshot: policy.Snapshot{Policies: policies}}); err != nil || string(text) != string(docs.texts[owner]) {
			t.Fatalf("%s: owner %s has other policies stored: %v", where, owner, err)
		}
	}
	s, err := p.snapshot(docs, docs.now)
	if err != nil {
		t.Fatal(err)
	}
	s.Previous = nil
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
	dir, err := p.Objects.FilesDir()
	if err != nil {
		t.Fatal(err)
	}
	if names, err := filepath.Glob(dir + "/*" + beforeSuffix); err != nil || len(names) > 0 {
		t.Fatalf("%s: %v are left: %v", where, names, err)
	}
}

// TestLostFiles deletes and edits the file of policies that are in force: nobody takes them for none, and what is in
// force stays.
func TestLostFiles(t *testing.T) {
	testkit.RequireRoot(t)
	p := openPods(t)
	admit(t, p, 0, "a")
	want := Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{allow("deny", "a")}}}
	if _, err := p.Apply(t.Context(), service.CLI, want); err != nil {
		t.Fatal(err)
	}
	dir, err := p.Objects.FilesDir()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "cli"+setSuffix)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for name, lose := range map[string]func() error{
		"edited":  func() error { return os.WriteFile(file, []byte("{}"), 0o600) },
		"deleted": func() error { return os.Remove(file) },
	} {
		text, err := os.ReadFile(file)
		if err := errors.Join(err, lose()); err != nil {
			t.Fatal(err)
		}
		_, err = p.Apply(t.Context(), service.Agent, want)
		if _, errList := p.List(); !errors.As(err, new(*LostError)) || !errors.As(errList, new(*LostError)) {
			t.Errorf("%s: %v, %v", name, err, errList)
		}
		if row, _, err := p.Objects.Endpoints.Get(rows.EncodeAddr(address4(0))); err != nil || row.Ingress == 0 {
			t.Errorf("%s: the pod has no rules: %v", name, err)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Apply(t.Context(), service.Agent, want); err != nil {
		t.Error(err)
	}
}
