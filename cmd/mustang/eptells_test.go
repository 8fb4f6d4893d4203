// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/testkit"
)

// TestEndpointTells has ep ls show what a pod may send as, and ep add refuse an empty name and warn of labels that a Pod object decides.
func TestEndpointTells(t *testing.T) {
	n := newKillNetwork(t)
	says := func(want int, text, line string, more ...string) {
		t.Helper()
		code, stdout, stderr := command(t, map[string]string{cli.EnvBPFRoot: n.root}, append(n.args(line), more...)...)
		if code != want || !strings.Contains(stdout+stderr, text) {
			t.Errorf("%s: exit code %d, %s%s\nwant %d, %q", line, code, stdout, stderr, want, text)
		}
	}
	const add = "ep add --netns=PODA --host-netns=HOST"
	n.run(add + " --namespace=shop --pod=db --label=app=db --allowed-address=192.168.10.200 --allowed-address=fd00:99::/64")
	says(exitDone, "  192.168.10.200,fd00:99::/64  shop", "ep ls -o wide")
	says(exitDone, `"192.168.10.200/32",`, "ep ls -o json")
	says(exitFailed, "each host needs a directory of its own; a pod of that one takes --host-netns\n", "ep add --netns=PODC")
	says(exitMisuse, "--namespace is empty", add+" --namespace=")
	says(exitMisuse, "--pod is empty", add+" --pod=")
	for _, bad := range []string{"fe80::1%eth0", "fe80::1", "0.0.0.0", "127.0.0.1", "224.0.0.1"} {
		says(exitMisuse, "address \""+bad+"\": other pods could not send to it", add+" --address="+bad)
	}
	says(exitMisuse, `allowed address "fe80::1%eth0": want an IP address or a prefix`, add+" --allowed-address=fe80::1%eth0")
	says(exitDone, "  shop       db   app=db", "ep ls")

	file := filepath.Join(t.TempDir(), "policy.yaml")
	const pod = "\n---\n{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: other}}}\n"
	if err := os.WriteFile(file, []byte(keepsPolicy+pod), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run("policy apply --file=" + file)
	says(exitDone, "mustang: --label is ignored: the Pod object shop/db decides the labels, app=other\n", add+" --label=quarantine=yes")
	if err := os.WriteFile(file, []byte(keepsPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run("policy apply --file=" + file)
	says(exitDone, "  shop       db   app=other", "ep ls") // what is known last stays until ep add says something else
	code, _, stderr := command(t, map[string]string{cli.EnvBPFRoot: n.root}, n.args(add+" --label=quarantine=yes")...)
	if code != exitDone || strings.Contains(stderr, "is ignored") {
		t.Errorf("a label that holds: exit code %d, %s", code, stderr)
	}
	says(exitDone, "  shop       db   quarantine=yes", "ep ls")
}

// TestApplyGuardsDevices has a policy that lets all in, and the host reach a pod on macvlan by a device of its own that it has made after
// the pod: policy apply guards it.
func TestApplyGuardsDevices(t *testing.T) {
	n := newKillNetwork(t)
	n.run(addOnParent)
	for _, line := range []string{
		"-n HOST link set beyond up", "-n HOST link add late link parent type macvlan mode bridge", "-n HOST addr add " + killPodC + "9/24 dev late", "-n HOST link set late up",
	} {
		if out, err := exec.Command("ip", strings.Fields(strings.Replace(line, "HOST", n.host.Name(), 1))...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	const all = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: all}, spec: {podSelector: {}, ingress: [{}], egress: [{}]}}\n"
	if err := os.WriteFile(file, []byte("---\n"+all), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run("policy apply --file=" + file)
	testkit.Eventually(t, 30*time.Second, func() error { return testkit.Ping(n.host, netip.MustParseAddr(killPodC), 8) })
}
