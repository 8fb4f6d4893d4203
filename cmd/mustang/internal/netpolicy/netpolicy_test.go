// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
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
	return "---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: " + name + "}, spec: {podSelector: {}}}\n"
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
	c := Command(&cli.Config{Environment: cli.Environment{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out}, BPFRoot: n.root})
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
	n.agent(networkPolicy("k8s-web") + networkPolicy("db"))
	n.says("NetworkPolicy  -         shop       db       ingress     0     off       cli", "ls")
	n.says("NetworkPolicy  -         shop       db       ingress     0     enforced  agent", "ls")
	n.says("audit: policies of owner agent are enforced; nothing was changed", "apply", "-f", n.file, "--audit")
	n.says("audit: policies of owner agent are enforced; nothing was changed", "apply", "-f", n.file, "--audit", "--dry-run")
	n.says("policy shop/k8s-web is of owner agent: delete it in the cluster, by kubectl delete networkpolicy -n shop k8s-web",
		"delete", "shop/k8s-web")
	n.says("1 unchanged, now enforced", "apply", "-f", n.file)
	n.says("deleted: shop/db", "delete", "shop/db")
	n.says("there are no policies of the command line", "delete", "--all")
}
