// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/kube/kubetest"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestUnreadPolicies closes the pods that unreadable policies select, whether these were readable before or not. An
// event reports it.
func TestUnreadPolicies(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	s.Put(t, networkPolicies, fmt.Sprintf(strings.Replace(denyAll, `"podSelector": {}`, `"ingress": []`, 1),
		`, "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": [{"to": [{"later": {}}]}]`))
	s.Put(t, "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
		`{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
"metadata": {"name": "dns"}, "spec": {"tier": "Admin", "priority": 3, "subject": {"namespaces": {}}, "egress": [{"action": "Accept", "to": [{"domainNames": ["example.org"]}]}]}}`)
	start(t, s, rows)
	rows.wantsRules(t, "policies that never could be read", rules{[]string{"/dns", "shop/deny"}, nil})
	rows.Lock()
	dns, deny := rows.kept[0], rows.kept[1]
	rows.Unlock()
	testkit.Check(t, dns.Priority == 3 && len(dns.Ingress) == 0 && len(dns.Egress) == 1 &&
		dns.Egress[0].Action == policy.Deny && dns.Egress[0].Peers == nil && !deny.IsolatesIngress && deny.IsolatesEgress &&
		len(deny.Egress) == 0 && deny.Subject.Pods.Labels["app"] == "web",
		"there is %+v, %+v", dns, deny)
	wantsEvents(t, s, map[string]int{`to[0].later: unknown field; until it can be, it isolates the pods ` +
		`that it selects`: 1})
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, `, "ingress": [{}]`))
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, `, "ingress": [{"later": 1}]`))
	testkit.Eventually(t, 30*time.Second, func() error {
		rows.Lock()
		defer rows.Unlock()
		if p := rows.kept[len(rows.kept)-1]; len(p.Ingress) > 0 || !p.IsolatesIngress || p.IsolatesEgress {
			return fmt.Errorf("a policy that can be read no more is %+v", p)
		}
		return nil
	})
}

// TestFullNodeIsDegraded has a node whose maps are too full for a change of policies: the policies in force stay, the
// node stays ready and in service, and a later attempt succeeds.
func TestFullNodeIsDegraded(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.0.0/24"]`, ""))
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, ""))
	a := start(t, s, rows)
	state := a.State
	expect := func(degraded bool, number int) {
		t.Helper()
		testkit.Eventually(t, 10*time.Second, func() error {
			report, err := a.Report(t.Context(), status.Query{})
			if err != nil {
				return err
			}
			ready, health := ask(state.Probes(), "/readyz").Code, ask(state.Probes(), "/healthz")
			healthy, body := health.Code, health.Body.String()
			rounds := state.Report().Sync
			tells := strings.Contains(body, `"degraded": "policies: degraded: map \"verdicts\" is full`) &&
				strings.Contains(fmt.Sprint(report.Warnings), `map "verdicts" is full`) &&
				strings.Contains(ask(state.Metrics(), "/metrics").Body.String(), "\nmustang_agent_degraded 1\n")
			rows.Lock()
			defer rows.Unlock()
			if tells != degraded || ready != 200 || healthy != 200 || rounds.Failed > 0 || len(rows.rules.policies) != number {
				return fmt.Errorf("degraded %t, /readyz %d, /healthz %d %s, warnings %q, %+v, %v", tells, ready, healthy, body,
					report.Warnings, rounds, rows.rules.policies)
			}
			return nil
		})
	}
	expect(false, 1)
	rows.set(func() { rows.refuses = &objects.FullError{Map: "verdicts", Size: 262144} })
	s.Put(t, networkPolicies, strings.Replace(fmt.Sprintf(denyAll, ""), `"deny"`, `"more"`, 1))
	expect(true, 1)
	rows.set(func() { rows.refuses = nil })
	expect(false, 2)
}

// TestLabelsForOtherOwners has policies of the command line use labels of pods that no policy of the cluster names: the
// agent keeps the labels.
func TestLabelsForOtherOwners(t *testing.T) {
	testkit.RequireRoot(t)
	d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: filepath.Join(testkit.BPFFS(t), "mustang")}))(t)
	defer d.Close()
	node := testkit.Must(os.Hostname())(t)
	db := policy.Pod{Namespace: "db", Name: "app0", Node: node, Labels: map[string]string{"app": "app0"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	endpoint, _, err := d.Policies().Objects.Endpoints.Get(rows.EncodeAddr(db.Addresses[0]))
	testkit.Succeed(t, err)
	endpoint.Id = 1
	testkit.Succeed(t, d.Policies().Objects.Endpoints.Put(rows.EncodeAddr(db.Addresses[0]), endpoint))
	inNamespace := func(name string) policy.PodSelector {
		return policy.PodSelector{Namespaces: policy.Selector{Requirements: []policy.Requirement{{Key: policy.NamespaceLabel,
			Operator: "In", Values: []string{name}}}}}
	}
	without := func(key string) []policy.Policy {
		return []policy.Policy{{
			Tier: policy.Namespaced, Namespace: "db", Name: "without", IsolatesIngress: true, Subject: inNamespace("db"),
			Ingress: []policy.Rule{
				{Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{{Key: key,
					Operator: "DoesNotExist"}}}}}}}},
		}}
	}
	far := policy.Pod{Namespace: "other", Name: "far", Labels: map[string]string{"quarantine": "yes", "app": "x"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.200.0.5")}}
	web := policy.Policy{Tier: policy.Namespaced, Namespace: "shop", Name: "web", IsolatesIngress: true}
	cli := policies.Set{Snapshot: policy.Snapshot{Pods: []policy.Pod{db}, Namespaces: []policy.Namespace{{Name: "db"}}}}
	a := New(Options{Node: node, Policies: d.Policies(), State: status.NewTracker(), Log: slog.New(slog.DiscardHandler)})
	a.policies.put(object{"pods", "other", "far"}, fragment{Pods: []policy.Pod{far}})
	a.policies.put(object{"pods", "db", "app0"}, fragment{Pods: []policy.Pod{db}})
	a.policies.put(object{"networkpolicies", "shop", "web"}, fragment{Policies: []policy.Policy{web}})
	for round, key := range []string{"quarantine", "another", "quarantine"} {
		if round == 2 { // the cluster is without policies
			a.policies.put(object{"networkpolicies", "shop", "web"}, fragment{})
		}
		a.policies.changed, cli.Policies = true, without(key)
		testkit.Must(d.Policies().Apply(t.Context(), service.CLI, cli))(t)
		testkit.Succeed(t, a.readInForce(t.Context()))
		a.policies.elsewhere = true
		set, _ := a.policies.set()
		lost, err := a.applyPolicies(t.Context(), set, a.policies.version)
		testkit.Require(t, lost == nil && err == nil, "%v %v", lost, err)
		for _, p := range testkit.Must(d.Policies().List())(t) {
			testkit.Check(t, p.Owner != service.Agent || same(p.Policy, web),
				"round %d: the status takes %+v for another policy than %+v", round, p.Policy, web)
		}
		now := testkit.Must(d.Policies().Snapshot())(t)
		_, in, err := policy.Explain(now, policy.Flow{Source: far.Addresses[0], Destination: db.Addresses[0],
			Protocol: service.TCP, Port: 80})
		testkit.Check(t, err == nil && in.Allow == (key == "another"), "round %d: %v, %v", round, in, err)
	}
}

// quotaOf refuses policies of a namespace that are more than some, or have more rules.
type quotaOf struct {
	Policies
	policies, rules int
	written         []policy.Policy
}

func (q *quotaOf) Apply(_ context.Context, _ service.Owner, want policies.Set) (r policies.Result, err error) {
	number, rules := map[string]int{}, map[string]int{}
	for _, p := range want.Policies {
		number[p.Namespace]++
		rules[p.Namespace] += len(p.Ingress)
	}
	for _, name := range []string{"many", "rules", "shop"} {
		if want.Quota > 1 && (number[name] > q.policies || rules[name] > q.rules) {
			err = &policy.QuotaError{Over: []*policy.LimitError{{Namespace: name, What: "verdict rows", Number: 2, Limit: 1}}}
		}
	}
	if err == nil {
		q.written = want.Policies
	}
	return r, err
}

// TestOverQuota has one namespace with too many rules, and one with too many policies even without rules: the first
// keeps its policies, which only isolate the pods that they select; one policy isolates all pods of the second. The
// policies of a shop keep their rules.
func TestOverQuota(t *testing.T) {
	q := &quotaOf{policies: 4, rules: 8}
	a := New(Options{Node: "here", Policies: q, State: status.NewTracker(),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	var want policies.Set
	add := func(namespace string, number, rules int) {
		for n := range number {
			p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: fmt.Sprint(n), IsolatesIngress: n > 0,
				IsolatesEgress: n == 0, Ingress: make([]policy.Rule, rules)}
			p.Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: namespace}
			p.Subject.Pods.Labels = map[string]string{"app": p.Name}
			want.Policies = append(want.Policies, p)
		}
	}
	add("many", 5, 1)
	add("rules", 3, 3)
	add("shop", 2, 4)
	degraded, err := a.applyPolicies(t.Context(), want, 1)
	testkit.Require(t, degraded == nil && err == nil, "%v %v", degraded, err)
	have := map[string]int{}
	for _, p := range q.written {
		all := p.Subject.Pods.Labels == nil
		if have[p.Namespace]++; all != (p.Namespace == "many") || len(p.Ingress) > 0 != (p.Namespace == "shop") || all &&
			!(p.IsolatesIngress && p.IsolatesEgress) {
			t.Errorf("there is %+v", p)
		}
	}
	testkit.Check(t, fmt.Sprint(have) == "map[many:1 rules:3 shop:2]" && len(a.over) == 2 &&
		len(a.over["many"].names)+len(a.over["rules"].names) == 8,
		"there are %v, and above their quota %v", have, a.over)
	testkit.Check(t, len(want.Policies[0].Ingress) == 1, "the caller's policies were edited")
}

// TestAwaitPod waits for Pods: the table contains the policies on return, or the error names the missing part. A mirror
// Pod has a UID of its own; the runtime has the kubelet's UID.
func TestAwaitPod(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	a := agentOver(t, s, rows)
	await := func(name, uid string, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return a.AwaitPod(ctx, "shop", name, uid)
	}
	fails := func(name, uid, why string) {
		t.Helper()
		err := await(name, uid, 50*time.Millisecond)
		testkit.Check(t, errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), why),
			"%s %s: %v, want %q", name, uid, err, why)
	}
	fails("web", "1", "has not read all objects")
	put := func(name, node, more string) {
		s.Put(t, podList, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q, `+
			`"labels": {"app": %[1]q}, %[3]s}, "spec": {"nodeName": %[2]q}}`, name, node, more))
	}
	startAgent(t, a)
	err := await("", "", time.Minute)
	testkit.Check(t, err == nil, "the tables alone: %v", err)
	put("web", "here", `"uid": "1"`)
	fails("web", "1", "not received Namespace shop")
	s.Put(t, "/api/v1/namespaces", shopNamespace)
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, ""))
	rows.wantsRules(t, "a policy", rules{[]string{"shop/deny"}, []string{"web map[app:web] []"}})
	put("late", "here", `"uid": "2"`)
	put("there", "elsewhere", `"uid": "3"`)
	put("static", "here", `"uid": "4", "annotations": {"kubernetes.io/config.mirror": "5"}`)
	for name, uid := range map[string]string{"web": "1", "late": "2", "static": "5"} {
		err := await(name, uid, time.Minute)
		testkit.Check(t, err == nil, "%s: %v", name, err)
		rows.Lock()
		have := fmt.Sprint(rows.pods)
		testkit.Check(t, strings.Contains(have, name+" map[app:"+name+"]"), "%s: the table has %s", name, have)
		rows.Unlock()
	}
	err = await("late", "", time.Minute)
	testkit.Check(t, err == nil, "a runtime that tells no UID: %v", err)
	fails("late", "9", `not received Pod shop/late with UID "9"`)
	fails("there", "3", "not received Pod shop/there")
	fails("none", "7", "not received Pod shop/none")

	rows.set(func() { rows.refuses = errors.New("no tables") })
	put("new", "here", `"uid": "8"`)
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		if err = await("new", "8", 300*time.Millisecond); err == nil ||
			strings.Contains(err.Error(), "cannot be written: no tables") {
			break
		}
	}
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "cannot be written: no tables"),
		"policies that cannot be written: %v", err)
	rows.set(func() { rows.refuses = nil })
	err = await("new", "8", time.Minute)
	testkit.Check(t, err == nil, "written at last: %v", err)
}
