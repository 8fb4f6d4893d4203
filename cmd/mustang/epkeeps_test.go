// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/testkit"
)

const keepsPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: d, namespace: shop }
spec: { podSelector: { matchLabels: { app: db } }, policyTypes: [Ingress] }
`

// TestEndpointKeeps changes pods by ep add, one flag at a time, after root of a pod has taken addresses: what no flag names stays.
func TestEndpointKeeps(t *testing.T) {
	n := newKillNetwork(t)
	names := strings.NewReplacer("HOST", n.host.Name(), "PODA", n.pods[0].Name(), "PODB", n.pods[1].Name())
	ip := func(line string) {
		t.Helper()
		if out, err := exec.Command("ip", strings.Fields(names.Replace(line))...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	says := func(line string, wants ...string) {
		t.Helper()
		code, stdout, stderr := command(t, map[string]string{cli.EnvBPFRoot: n.root}, n.args(line)...)
		for _, want := range wants {
			if !strings.Contains(stdout, want) {
				t.Errorf("%q: exit code %d, %s%s\nwant %q", line, code, stdout, stderr, want)
			}
		}
	}
	const vip = "192.168.10.200"
	n.run("ep add --netns=PODA --host-netns=HOST --namespace=shop --pod=db --label=app=db --allowed-address=" + vip)
	n.run("ep add --netns=PODB --host-netns=HOST --allowed-address=" + vip)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(keepsPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run("policy apply --file=" + file)
	for _, flag := range []string{"--label=app=db,version=2", "--pod=db-2", "--namespace=shop", "--address=" + killPodA} {
		n.run("ep add --netns=PODA --host-netns=HOST " + flag)
		says("policy explain "+killPodB+" "+killPodA+" 80", "denied")
	}
	says("ep ls", "shop       db-2        app=db,version=2")
	n.run("policy delete shop/d")

	// Root of a pod takes addresses: the outside's, another pod's.
	ip("-n PODB addr add 8.8.8.8/32 dev eth0")
	ip("-n PODB addr add " + killPodA + "/32 dev eth0")
	says("ep add --netns=PODB --host-netns=HOST --label=app=b", "endpoint 2 "+killPodB+" updated\n")
	says("ep ls -o json", `"ip": "`+killPodA+`"`, `"ip": "`+killPodB+`"`)
	if code, stdout, _ := command(t, map[string]string{cli.EnvBPFRoot: n.root}, "ep", "ls"); code != exitDone || strings.Count(stdout, "\n") != 3 {
		t.Errorf("endpoints:\n%s", stdout)
	}
	ip("-n PODB addr flush dev eth0")
	says("ep add --netns=PODB --host-netns=HOST --label=app=c", "endpoint 2 "+killPodB+" updated\n")
	ip("-n PODB addr add " + killPodB + "/24 dev eth0")

	// The address that moves: its holder is changed, and then the other one gets it.
	for i, holder := range []string{"PODA", "PODB", "PODA"} {
		ip("-n " + holder + " addr add " + vip + "/24 dev eth0")
		says("ep add --netns="+holder+" --host-netns=HOST --label=app=v,step="+string(rune('a'+i)), "updated")
		echo := testkit.Echo(t, n.pods[i%2], "udp", vip+":0")
		ip("-n HOST neigh flush all")
		if _, err := testkit.RoundTrip(t, n.host, "udp", echo.String(), []byte("to "+holder)); err != nil {
			t.Errorf("%s has %s: %v", holder, vip, err)
		}
		ip("-n " + holder + " addr del " + vip + "/24 dev eth0")
	}
	if code, stdout, _ := command(t, map[string]string{cli.EnvBPFRoot: n.root}, "ep", "ls"); code != exitDone || strings.Contains(stdout, vip) {
		t.Errorf("endpoints:\n%s", stdout)
	}

	// Addresses that are named; the host of a device that is the pod's own need not be.
	says("ep add --netns=PODA --host-netns=HOST --address=192.168.10.77", "endpoint 1 192.168.10.77 updated\n")
	if code, _, stderr := command(t, map[string]string{cli.EnvBPFRoot: n.root}, n.args("ep add --netns=PODA --host-netns=HOST --address=192.168.10.1")...); code == exitDone ||
		!strings.Contains(stderr, "belongs to the host") {
		t.Errorf("the host's address: exit code %d, %s", code, stderr)
	}
	n.run(addOnParent)
	if code, _, stderr := command(t, map[string]string{cli.EnvBPFRoot: n.root}, n.args("ep rm --netns=PODC")...); code != exitDone {
		t.Errorf("ep rm without --host-netns: %s", stderr)
	}
}
