// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

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
