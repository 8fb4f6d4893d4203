// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

const pods = `
{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web, labels: {app: web}}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: db, labels: {app: db}}, status: {podIP: 10.0.0.2}}
`

func networkPolicy(name string) string {
	return "---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: " + name +
		"}, spec: {podSelector: {}}}\n"
}

// node is a datapath of the test's own.
type node struct {
	*testing.T
	root, file string
}

// newNode returns a datapath that has a policy of the command line, and a file with others.
func newNode(t *testing.T) node {
	t.Helper()
	testkit.RequireRoot(t)
	n := node{t, filepath.Join(testkit.BPFFS(t), "mustang"), filepath.Join(t.TempDir(), "policies.yaml")}
	n.write("---" + pods + networkPolicy("db"))
	return n
}

func (n node) write(text string) {
	n.Helper()
	if err := os.WriteFile(n.file, []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
}

// agent applies policies as the agent.
func (n node) agent(text string) {
	n.Helper()
	set, err := manifest.Read(strings.NewReader(text))
	if err != nil {
		n.Fatal(err)
	}
	d, err := datapath.Open(n.Context(), datapath.Options{Root: n.root})
	if err != nil {
		n.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Policies().Apply(n.Context(), service.Agent, policies.Set{Snapshot: set.Snapshot}); err != nil {
		n.Fatal(err)
	}
}

// policy runs a command on policies, and returns what it writes.
func (n node) policy(ctx context.Context, args ...string) (text string, err error) {
	n.Helper()
	var out bytes.Buffer
	c := policyCommand(&cli.Config{Environment: cli.Environment{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out},
		BPFRoot: n.root})
	c.SetArgs(args)
	c.SilenceErrors, c.SilenceUsage = true, true
	err = c.ExecuteContext(ctx)
	return out.String(), err
}

func (n node) says(want string, args ...string) {
	n.Helper()
	text, err := n.policy(n.Context(), args...)
	if err != nil {
		text += err.Error() + "\n"
	}
	if !strings.Contains(text, want) {
		n.Errorf("policy %s: %q, want %q", strings.Join(args, " "), text, want)
	}
}

// TestPoliciesOfAgent has policies of the agent beside those of the command line.
func TestPoliciesOfAgent(t *testing.T) {
	n := newNode(t)
	n.says("1 added", "apply", "-f", n.file, "--audit")
	n.says("NetworkPolicy  -         shop       db    ingress     0     audited  cli", "ls")
	n.says("no pod shop/none: mustang ep ls has those that are known", "explain", "shop/none", "shop/db", "80")
	n.agent(networkPolicy("k8s-web") + networkPolicy("db"))
	n.says("no pod shop/none: name a pod (kubectl get pods), not a Deployment or Service", "explain", "shop/none",
		"shop/db", "80")
	n.says("\ningress: denied: shop/db and shop/k8s-web select this pod, and no rule of theirs allows it\n", "explain",
		"shop/web", "shop/db", "80")
	n.says("\"isolating\": [\n      \"shop/db\",\n      \"shop/k8s-web\"\n    ]", "explain", "shop/web", "shop/db", "80",
		"-o", "json")
	n.says("NetworkPolicy  -         shop       db       ingress     0     off       cli", "ls")
	n.says("NetworkPolicy  -         shop       db       ingress     0     enforced  agent", "ls")
	n.says("audit: policies of owner agent are enforced; nothing was changed", "apply", "-f", n.file, "--audit")
	n.says("audit: policies of owner agent are enforced; nothing was changed", "apply", "-f", n.file, "--audit",
		"--dry-run")
	n.says("policy shop/k8s-web is of owner agent: delete it in the cluster, by kubectl delete networkpolicy -n shop "+
		"k8s-web",
		"delete", "shop/k8s-web")
	n.says("without the audited policies of owner cli, which are off: others are enforced", "explain", "shop/web",
		"shop/db", "80")
	n.says("1 unchanged, now enforced", "apply", "-f", n.file)
	n.says("deleted: shop/db", "delete", "shop/db")
	n.says("there are no policies of the command line", "delete", "--all")
}

const smtp = `---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: base}, spec: {tier: Baseline, priority: 5, subject: {namespaces: {}},
  egress: [{name: smtp, action: Deny, to: [{networks: [0.0.0.0/0]}], protocols: [{tcp: {destinationPort: {number: 25}}}]}]}}
`

// TestWhoDecides has explain name a rule and its policy.
func TestWhoDecides(t *testing.T) {
	n := newNode(t)
	n.write("---" + pods + smtp)
	n.says("1 added", "apply", "-f", n.file)
	d, err := datapath.Open(t.Context(), datapath.Options{Root: n.root})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	k, err := know(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	rule := policy.Origin{Reason: policy.ByRule, Tier: policy.Baseline, Name: "base", Direction: policy.Egress}
	const want = "ClusterNetworkPolicy base (Baseline), rule egress[0]"
	if got := k.describe(rule); got != want+" (smtp)" {
		t.Errorf("%q", got)
	}
	n.agent(smtp)
	if k, err = know(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if got := k.describe(rule); got != want+", of a policy by this name of cli or agent" {
		t.Errorf("%q", got)
	}
}

// TestManyDeleted names some of the policies that are deleted, and counts the others.
func TestManyDeleted(t *testing.T) {
	n := newNode(t)
	var text strings.Builder
	for i := range 103 {
		text.WriteString(networkPolicy(fmt.Sprintf("p%03d", i)))
	}
	n.write(text.String())
	n.says("103 added", "apply", "-f", n.file)
	got, err := n.policy(t.Context(), "delete", "--all")
	if err != nil || !strings.Contains(got, "103 deleted, 0 unchanged\ndeleted: shop/p000\n") ||
		!strings.HasSuffix(got, "\ndeleted: shop/p099\ndeleted: 3 more\n") {
		t.Errorf("%q, %v", got, err)
	}
}

// TestOneTrace refuses a second trace, and ends one whose datapath is removed.
func TestOneTrace(t *testing.T) {
	n := newNode(t)
	n.says("1 added", "apply", "-f", n.file)
	ended := make(chan error, 1)
	start := func() {
		_, err := n.policy(t.Context(), "trace")
		ended <- err
	}
	go start()
	testkit.Eventually(t, 10*time.Second, func() error {
		select {
		case <-ended: // the second one was first
			go start()
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := n.policy(ctx, "trace"); err == nil ||
			!strings.Contains(err.Error(), "another monitor or policy trace runs") {
			return fmt.Errorf("a second trace: %v", err)
		}
		return nil
	})
	if err := objects.Remove(t.Context(), n.root); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || err.Error() != "the datapath was removed: there is nothing to monitor any more" {
		t.Errorf("the trace ends with %v", err)
	}
}
