// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
)

// dual is three pods of this node that have both families, and one of another node.
const dual = `---
{apiVersion: v1, kind: Pod, metadata: {namespace: mac, name: m1, labels: {app: web}}, status: {podIPs: [{ip: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: mac, name: m2, labels: {app: other}}, status: {podIPs: [{ip: 10.0.0.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: mac, name: m3, labels: {app: db}}, status: {podIPs: [{ip: 10.0.0.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: mac, name: remote, labels: {app: db}}, status: {podIPs: [{ip: 10.0.9.9}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: mac, name: db}, spec: {podSelector: {matchLabels: {app: db}},
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}, {from: [{ipBlock: {cidr: "fd00:20::/64"}}]}]}}
`

// newDual returns a node with the pods of dual.
func newDual(t *testing.T) node {
	t.Helper()
	n := newNode(t)
	n.write(dual)
	n.says("1 added", "apply", "-f", n.file)
	d, err := datapath.Open(t.Context(), datapath.Options{Root: n.root})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	o := d.Policies().Objects
	for i, addresses := range [][2]string{
		{"10.0.0.1", "fd00:20::1"}, {"10.0.0.2", "fd00:20::2"}, {"10.0.0.3", "fd00:20::3"}, {"10.0.0.4", "fd00:20::4"},
	} {
		for _, text := range addresses {
			row := objects.Endpoint{Id: uint32(i + 1), Netns: uint64(100 + i)}
			row.Path.Ifindex = uint32(10 + i)
			if err := o.Endpoints.Put(rows.EncodeAddr(netip.MustParseAddr(text)), row); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// TestBothFamilies asks about pods that have IPv4 and IPv6 addresses: an address chooses the family of the pod at the
// other end.
func TestBothFamilies(t *testing.T) {
	n := newDual(t)
	n.says("mac/m2 10.0.0.2 (app=other) > mac/m3 10.0.0.3 (app=db)\ndenied\n", "explain", "mac/m2", "10.0.0.3")
	n.says("mac/m2 fd00:20::2 (app=other) > mac/m3 fd00:20::3 (app=db)\nallowed\n", "explain", "mac/m2",
		"fd00:20::3", "80")
	n.says("mac/m2 fd00:20::2 (app=other) > mac/m3 fd00:20::3 (app=db)\nallowed\n", "explain", "fd00:20::2", "mac/m3")
	n.says("\nby IPv6, fd00:20::2 > fd00:20::3: allowed\n", "explain", "mac/m2", "mac/m3")
	n.says(`"ipv6": {`, "explain", "mac/m2", "mac/m3", "-o", "json")
	n.says("10.0.0.2 and ::1 are of two families, IPv4 and IPv6\n", "explain", "10.0.0.2", "::1")
	n.says("pod mac/remote lacks an IPv6 address\n", "explain", "fd00:20::2", "mac/remote")
	n.says("\nmac/remote is not a pod of this node, which does not enforce its policies\n", "explain", "mac/m2",
		"mac/remote")
	n.says("port \"http\": want a number from 1 to 65535, not the name of a port", "explain", "mac/m1", "mac/m3", "http")
	n.says("an address is link-local: name the pod, or another address of it\n", "explain", "mac/m2", "fe80::3%eth0")
	n.says("protocol \"icmp\": want tcp, udp or sctp; leave the port out for others", "explain", "mac/m1",
		"mac/m3", "80/icmp")
}

// TestDryRunRemarks has a dry run warn of what the policies would not do, as the apply does that follows.
func TestDryRunRemarks(t *testing.T) {
	n := newDual(t)
	selecting := func(label string) string {
		return "---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: mac, name: x}, spec: " +
			"{podSelector: {matchLabels: {app: " + label +
			"}}, ingress: [{ports: [{port: http}]}]}}\n"
	}
	const pod = "---\n{apiVersion: v1, kind: Pod, metadata: {namespace: mac, name: m1, labels: {app: LABEL}}, spec: " +
		"{containers: [{ports: [{name: NAME, containerPort: 80}]}]}, " +
		"status: {podIP: 10.0.0.1}}\n"
	for _, c := range []struct{ label, port, want string }{
		{"new", "http", "policies: 1 added, 0 updated, 1 deleted, 0 unchanged\ndeleted: mac/db\n"},
		{"neu", "http", "mustang: no pod of this node is selected by NetworkPolicy mac/x\n"},
		{"new", "web", "mustang: no pod has the named port of NetworkPolicy mac/x (port \"http\"): Pod objects in the " +
			"file name ports\n"},
	} {
		n.write(strings.NewReplacer("LABEL", c.label, "NAME", c.port).Replace(pod) + selecting("new"))
		n.says(c.want, "apply", "-f", n.file, "--dry-run")
		n.says("dry run: nothing was changed\n", "apply", "-f", n.file, "--dry-run")
		if text, err := n.policy(t.Context(), "apply", "-f", n.file, "--dry-run"); err != nil ||
			strings.Contains(text, "mustang: ") != strings.Contains(c.want, "mustang: ") {
			t.Errorf("%q, %v", text, err)
		}
	}
}

// TestJudgeNodeShows switches between policies that judge the node and others.
func TestJudgeNodeShows(t *testing.T) {
	n := newNode(t)
	n.says("1 added, 0 updated, 0 deleted, 0 unchanged, now judging the node\n", "apply", "-f", n.file, "--judge-node",
		"--dry-run")
	n.says("1 added, 0 updated, 0 deleted, 0 unchanged\n", "apply", "-f", n.file)
	n.says(" enforced  cli", "ls")
	n.says("1 updated, 0 deleted, 0 unchanged, now judging the node\n", "apply", "-f", n.file, "--judge-node")
	n.says(" enforced, node judged  cli", "ls")
	n.says(`"judges_node": true`, "ls", "-o", "json")
	n.says("0 updated, 0 deleted, 1 unchanged\n", "apply", "-f", n.file, "--judge-node")
	n.says("1 updated, 0 deleted, 0 unchanged, no longer judging the node\n", "apply", "-f", n.file, "--dry-run")
	n.says("1 updated, 0 deleted, 0 unchanged, no longer judging the node\n", "apply", "-f", n.file)
}
