// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/kept"
	"mustang/internal/testkit"
)

const keepsPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: d, namespace: shop }
spec: { podSelector: { matchLabels: { app: db } }, policyTypes: [Ingress] }
`

// TestEndpointKeeps changes pods by ep add, one flag at a time: what no flag names stays.
func TestEndpointKeeps(t *testing.T) {
	n := newKillNetwork(t)
	n.root = kept.Root(t)
	const vip = "192.168.10.200"
	n.run("ep add --netns=PODA --host-netns=HOST --namespace=shop --pod=db --label=app=db --allowed-address=" + vip)
	n.run("ep add --netns=PODB --host-netns=HOST --allowed-address=" + vip)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	testkit.Succeed(t, os.WriteFile(file, []byte(keepsPolicy), 0o600))
	n.run("policy apply --file=" + file)
	for _, flag := range []string{"--label=app=db,version=2", "--pod=db-2", "--namespace=shop", "--address=" + killPodA} {
		n.run("ep add --netns=PODA --host-netns=HOST " + flag)
		n.says(exitDone, "policy explain "+killPodB+" "+killPodA+" 80", "denied")
	}
	n.says(exitDone, "ep ls", "shop       db-2        app=db,version=2")
	n.run("policy delete shop/d")

	// Addresses that are named; the host of a device that is the pod's own need not be.
	n.says(exitDone, "ep add --netns=PODA --host-netns=HOST --address=192.168.10.77", "endpoint 1 192.168.10.77 updated\n")
	n.says(exitFailed, "ep add --netns=PODA --host-netns=HOST --address=192.168.10.1", "belongs to the host")
	n.run(addOnParent)
	n.says(exitDone, "ep rm --netns=PODC", "") // without --host-netns
}

// TestEndpointTells has ep ls show what a pod may send as, and ep add refuse an empty name and warn of labels that a
// Pod object decides.
func TestEndpointTells(t *testing.T) {
	n := newKillNetwork(t)
	n.root = kept.Root(t)
	const add = "ep add --netns=PODA --host-netns=HOST"
	n.run(add + " --namespace=shop --pod=db --label=app=db --allowed-address=192.168.10.200 " +
		"--allowed-address=fd00:99::/64")
	n.says(exitDone, "ep ls -o wide", "  192.168.10.200,fd00:99::/64  shop")
	n.says(exitDone, "ep ls -o json", `"192.168.10.200/32",`)
	n.says(exitFailed, "ep add --netns=PODC", "each host needs a directory of its own\n")
	n.says(exitMisuse, add+" --namespace=", "--namespace is empty")
	n.says(exitMisuse, add+" --pod=", "--pod is empty")
	for _, bad := range []string{"fe80::1%eth0", "fe80::1", "0.0.0.0", "127.0.0.1", "224.0.0.1"} {
		n.says(exitMisuse, add+" --address="+bad, "address \""+bad+"\": other pods could not send to it")
	}
	n.says(exitMisuse, add+" --allowed-address=fe80::1%eth0",
		`--allowed-address "fe80::1%eth0": want an IP address or a prefix`)
	n.says(exitDone, "ep ls", "  shop       db   app=db")

	file := filepath.Join(t.TempDir(), "policy.yaml")
	const pod = "\n---\n{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: other}}}\n"
	testkit.Succeed(t, os.WriteFile(file, []byte(keepsPolicy+pod), 0o600))
	n.run("policy apply --file=" + file)
	n.says(exitDone, add+" --label=quarantine=yes",
		"mustang: --label is ignored: the Pod object shop/db decides the labels, app=other\n")
	testkit.Succeed(t, os.WriteFile(file, []byte(keepsPolicy), 0o600))
	n.run("policy apply --file=" + file)
	n.says(exitDone, "ep ls", "  shop       db   app=other") // what is known last stays until ep add says something else
	code, _, stderr := command(t, map[string]string{cli.EnvBPFRoot: n.root}, n.args(add+" --label=quarantine=yes")...)
	if code != exitDone || strings.Contains(stderr, "is ignored") {
		t.Errorf("a label that holds: exit code %d, %s", code, stderr)
	}
	n.says(exitDone, "ep ls", "  shop       db   quarantine=yes")
}

// TestApplyGuardsDevices has a policy that lets all in, and the host reach a pod on macvlan by a device of its own that
// it has made after the pod: policy apply guards it.
func TestApplyGuardsDevices(t *testing.T) {
	n := newKillNetwork(t)
	n.root = kept.Root(t)
	n.run(addOnParent)
	n.ip(`-n HOST link set beyond up
		-n HOST link add late link parent type macvlan mode bridge
		-n HOST addr add ` + killPodC + `9/24 dev late
		-n HOST link set late up`)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	const all = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: all}, spec: {podSelector: " +
		"{}, ingress: [{}], egress: [{}]}}\n"
	testkit.Succeed(t, os.WriteFile(file, []byte("---\n"+all), 0o600))
	n.run("policy apply --file=" + file)
	testkit.Eventually(t, 30*time.Second, func() error { return testkit.Ping(n.host, netip.MustParseAddr(killPodC), 8) })
}
