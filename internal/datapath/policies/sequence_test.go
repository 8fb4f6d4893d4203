// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// audits reports whether denied connections now pass.
func (p Policies) audits(t *testing.T) bool {
	t.Helper()
	row := testkit.Must(p.Objects.NodeState.PoliciesInForce())(t)
	testkit.Require(t, row != 0, "policies are not in force")
	s, _ := must2(p.tables().settings.Get(uint32(row - 1)))(t)
	return s.Audit != 0
}

// TestAuditNeverDrops audits policies of the command line, while the agent's policies come, change and go. The
// audited policies never cause a drop, and count again when the agent's have gone.
func TestAuditNeverDrops(t *testing.T) {
	cli := denying("a", "b")
	cli.Audit = true
	p := openPods(t)
	for i, name := range []string{"a", "b", "c", "d"} {
		admit(t, p, i, name)
	}
	testkit.Must(p.Apply(t.Context(), service.CLI, cli))(t)
	testkit.Check(t, p.audits(t), "policies to audit are enforced")
	judged{t, p}.wants("audited", farAddress, address4(0), false)

	// The agent's first policies. While rows change, no audited policy is enforced.
	docs := testkit.Must(p.read())(t)
	next := docs.now
	next.sets = map[service.Owner]Set{service.CLI: cli, service.Agent: denying("c")}
	w := testkit.Must(p.plan(docs, next, policy.Limits{Work: policy.MostWork}))(t)
	testkit.Must(w.write(func(map[netip.Addr]policy.Sets) error {
		testkit.Check(t, p.audits(t), "policies to audit are enforced while others come")
		return nil
	}))(t)
	for _, names := range [][]string{{"c"}, {"b", "c"}} {
		testkit.Must(p.Apply(t.Context(), service.Agent, denying(names...)))(t)
		testkit.Check(t, !p.audits(t), "the agent's policies are audited")
		judged{t, p}.wants("one that was audited", farAddress, address4(0), true)
		judged{t, p}.wants("the agent's and one that was audited", farAddress, address4(1), len(names) == 1)
		judged{t, p}.wants("the agent's", farAddress, address4(2), false)
	}
	all, err := p.List()
	testkit.Require(t, err == nil && len(all) == 4, "%v, %v", all, err)
	for _, l := range all {
		if cli := l.Owner == service.CLI; l.Audited != cli || l.Off != cli || l.Pods != 1 {
			t.Errorf("%s of %s: audited %t, off %t, %d pods", l.Name, l.Owner, l.Audited, l.Off, l.Pods)
		}
	}
	_, err = p.Apply(t.Context(), service.CLI, cli)
	testkit.Fails(t, err, "audit: policies of owner agent are enforced; nothing was changed")
	testkit.Must(p.Apply(t.Context(), service.Agent, Set{}))(t)
	testkit.Check(t, p.audits(t), "policies to audit are enforced once the others have gone")
	judged{t, p}.wants("audited again", farAddress, address4(0), false)
	cli.Audit = false
	result, err := p.Apply(t.Context(), service.CLI, cli)
	testkit.Check(t, err == nil && result.Audit != nil && !*result.Audit && !p.audits(t),
		"audited, then enforced: %+v, %v", result, err)
}

// TestTry returns the effect of a change, and changes nothing.
func TestTry(t *testing.T) {
	p := openPods(t)
	testkit.Must(p.Apply(t.Context(), service.CLI, denying("a", "c", "b")))(t)
	result, err := p.Try(t.Context(), service.CLI, denying("b", "d"))
	testkit.Check(t, err == nil && result.Added == 1 && result.Deleted == 2 && strings.Join(result.Gone, " ") == "n/a n/c",
		"%+v, %v", result, err)
	wantListed(t, p, 3)
}

// TestKilledBeforeProgramsAreTold repeats a command that was killed after it wrote all rows and before it notified
// programs: connections are still judged again.
func TestKilledBeforeProgramsAreTold(t *testing.T) {
	p := openPods(t)
	want := denying("a")
	for range 2 {
		testkit.Must(p.Apply(t.Context(), service.CLI, want))(t)
	}
	told := func() uint64 { // the first field
		return binary.NativeEndian.Uint64(testkit.Must(p.Objects.NodeState.Map.LookupBytes(uint32(0)))(t))
	}
	before := told()
	_, err := p.Apply(t.Context(), service.CLI, want)
	testkit.Require(t, err == nil && told() == before, "nothing to do: programs were told, or %v", err)
	testkit.Succeed(t, p.begin(documents{}, update{}))
	result, err := p.Apply(t.Context(), service.CLI, want)
	testkit.Require(t, err == nil && result.Rows == 0, "%+v, %v; want no row written", result, err)
	testkit.Check(t, told() != before, "programs were not told")
	wantDone(t, p)
}

const pods = 6

func must2[V, W any](v V, w W, err error) func(testing.TB) (V, W) {
	return func(t testing.TB) (V, W) {
		t.Helper()
		testkit.Succeed(t, err)
		return v, w
	}
}

func wantDone(t *testing.T, p Policies) {
	t.Helper()
	testkit.Check(t, !testkit.Must(p.Pending())(t), "a change of policies is pending")
}

func openPods(t *testing.T) Policies {
	t.Helper()
	testkit.RequireRoot(t)
	sizes := objects.Sizes{Services: 16, Backends: 16, Connections: 64, Endpoints: 16}
	o := testkit.Must(objects.Create(t.Context(), testkit.BPFFS(t)+"/root", sizes, nil))(t)
	t.Cleanup(func() {
		if dir, err := o.FilesDir(); err == nil {
			_ = os.RemoveAll(dir)
		}
		_ = o.Close()
	})
	for i := range pods {
		at := rows.EncodeAddr(address4(i))
		row, _ := must2(o.Endpoints.Get(at))(t)
		row.Id = uint32(i + 1)
		testkit.Succeed(t, o.Endpoints.Put(at, row))
	}
	return Policies{Objects: o, Node: func() ([]netip.Addr, error) { return nil, nil }}
}

func address4(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}) }

// TestOwnersTakeTurns changes the policies of two owners and the labels of pods in turn, and has changes killed.
// After each change the rows equal the rows of a fresh compilation.
func TestOwnersTakeTurns(t *testing.T) {
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
			join(t, p, i, known)
		case 1: // a process is killed whose file is there, and no row of it
			want[owner] = vary(g, want[owner], owner)
			text := testkit.Must(encode(Set{Snapshot: policy.Snapshot{Policies: want[owner]}}))(t)
			docs, err := p.read()
			testkit.Succeed(t, errors.Join(err, p.begin(docs, update{sets: map[service.Owner][]byte{owner: text}})))
			pending, err := p.Pending()
			testkit.Require(t, err == nil && pending, "step %d: pending %t, %v", step, pending, err)
		default:
			want[owner] = vary(g, want[owner], owner)
			testkit.Must(p.Apply(t.Context(), owner, Set{Snapshot: policy.Snapshot{Policies: want[owner]}}))(t)
			checkRows(t, p, want, fmt.Sprintf("step %d", step))
		}
	}
}

// vary returns policies; one or all differ from old.
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
		each := policy.Policy{Tier: policy.Namespaced, Namespace: "n", Name: fmt.Sprintf("%s%d", owner, i),
			IsolatesIngress: true}
		each.Subject.Pods.Labels = map[string]string{"app": fmt.Sprint(g.IntN(3))}
		for range g.IntN(3) {
			at := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(g.IntN(4)), 0}), 24)
			port := uint16(80 + g.IntN(4))
			each.Ingress = append(each.Ingress, policy.Rule{
				Peers: []policy.Peer{{Block: &policy.Block{CIDR: at}}}, Ports: []policy.Port{{Protocol: service.TCP, First: port,
					Last: port}},
			})
		}
		out = append(out, each)
	}
	if g.IntN(12) == 0 {
		return nil
	}
	return out
}

// checkRows compares the maps with the result of a process that has only read the documents.
func checkRows(t *testing.T, p Policies, want map[service.Owner][]policy.Policy, where string) {
	t.Helper()
	docs := testkit.Must(p.read())(t)
	for owner, policies := range want {
		text := testkit.Must(encode(Set{Snapshot: policy.Snapshot{Policies: policies}}))(t)
		testkit.Require(t, string(text) == string(docs.texts[owner]), "%s: owner %s has other policies stored", where, owner)
	}
	s := testkit.Must(p.snapshot(docs, docs.now))(t)
	s.Previous = nil
	have := testkit.Must(p.readRows())(t)
	fresh := testkit.Must(policy.Steps(s, have, policy.Limits{Work: policy.MostWork}))(t)[0]
	for a, sets := range fresh.Endpoints { // rows of endpoints stay
		if sets == (policy.Sets{}) {
			delete(fresh.Endpoints, a)
		}
	}
	if d := policy.Diff(have, fresh); docs.pending || d.Len() != 0 {
		t.Fatalf("%s: pending %t, %d rows differ: %+v", where, docs.pending, d.Len(), d)
	}
	dir := testkit.Must(p.Objects.FilesDir())(t)
	names, err := filepath.Glob(dir + "/*" + beforeSuffix)
	testkit.Require(t, err == nil && len(names) == 0, "%s: %v are left: %v", where, names, err)
}

// TestLostFiles deletes and edits the file of policies that are in force: this is detected, and the rows in force stay.
func TestLostFiles(t *testing.T) {
	p := openPods(t)
	admit(t, p, 0, "a")
	want := Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{allow("deny", "a")}}}
	testkit.Must(p.Apply(t.Context(), service.CLI, want))(t)
	dir := testkit.Must(p.Objects.FilesDir())(t)
	file := filepath.Join(dir, "cli"+setSuffix)
	info, err := os.Stat(file)
	testkit.Check(t, err == nil && info.Mode().Perm() == 0o600, "%v, %v", info, err)
	for name, lose := range map[string]func() error{
		"edited":  func() error { return os.WriteFile(file, []byte("{}"), 0o600) },
		"deleted": func() error { return os.Remove(file) },
	} {
		text, err := os.ReadFile(file)
		testkit.Succeed(t, errors.Join(err, lose()))
		_, err = p.Apply(t.Context(), service.Agent, want)
		_, listed := p.List()
		lost := errors.As(err, new(*LostError)) && errors.As(listed, new(*LostError))
		testkit.Check(t, lost, "%s: %v, %v", name, err, listed)
		row, _, err := p.Objects.Endpoints.Get(rows.EncodeAddr(address4(0)))
		testkit.Check(t, err == nil && row.Ingress != 0, "%s: the pod has no rules: %v", name, err)
		testkit.Succeed(t, os.WriteFile(file, text, 0o600))
	}
	testkit.Must(p.Apply(t.Context(), service.Agent, want))(t)
}
