// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"os/exec"
	"strings"
	"testing"

	"mustang/internal/nl"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// command runs a program in a namespace. It must work.
func command(t testing.TB, ns *nl.Namespace, line string) string {
	t.Helper()
	args := strings.Fields(line)
	testkit.RequireTool(t, args[0])
	var output strings.Builder
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s in %s: %v: %s", line, ns.Name(), err, &output)
	}
	return output.String()
}

// fill puts a pod's names into a text: {device} is the host's device of the pod,
// {gateways} the device that has the gateways, {4} and {6} are the pod's addresses,
// {g4} and {g6} their gateways, {via4} and {via6} the next hops of its default routes.
func (f *fixture) fill(p *pod, mode, text string) string {
	gateways := map[string]string{"veth": "lo", "bridge": podlink.DefaultBridge, "macvlan": podlink.HostSlave}[mode]
	ips := p.ips()
	hop4, hop6 := gateway(p, 0).String(), gateway(p, 1).String()
	if mode == "veth" { // the next hops are the same for all pods
		hop4, hop6 = "169.254.1.1", "fe80::1"
	}
	return strings.NewReplacer(
		"{device}", deviceName("net", p.request.owner()), "{gateways}", gateways,
		"{4}", ips[0].String(), "{6}", ips[1].String(), "{g4}", gateway(p, 0).String(), "{g6}", gateway(p, 1).String(),
		"{via4}", hop4, "{via6}", hop6,
	).Replace(text)
}

// oneLine fails the test unless the error, as a runtime gets it, is one line with all
// the words.
func (f *fixture) oneLine(err error, words ...string) {
	f.t.Helper()
	if err == nil {
		f.t.Errorf("no error, want one with %q", words)
		return
	}
	said := Coded(err).Msg
	if strings.Contains(said, "\n") {
		f.t.Errorf("%q is more than one line", said)
	}
	for _, word := range words {
		if !strings.Contains(said, word) {
			f.t.Errorf("%q lacks %q", said, word)
		}
	}
}
