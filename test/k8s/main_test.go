// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"mustang/test/k8s/internal/specs"
)

// TestUsage has command lines that make no sense.
func TestUsage(t *testing.T) {
	for _, line := range []string{"", "--", "frob", "up x", "test nothing", "test netpol short", "-focus x test netpol", "-record x test", "table x", "-- ", "test -- true",
		"-procs x test", "versions x", "kill", "kill 0", "kill x", "kill 1 2", "-nodes native netpol-api", "netpol-api v1beta1",
		"-nodes one,native netpol-api v1beta1", "-nodes native netpol-api v1", "-nodes native -focus x -record y netpol-api v1beta1"} {
		t.Run(line, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := (&runner{stdout: &stdout, stderr: &stderr}).main(t.Context(), strings.Fields(line))
			if code != exitMisuse || !strings.Contains(stderr.String(), "usage:") || stdout.Len() > 0 {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, &stdout, &stderr)
			}
		})
	}
}

// TestUnknownSetups names what is unknown before anything is built.
func TestUnknownSetups(t *testing.T) {
	for _, args := range []string{"-family ipv5 test", "-nodes one,four test"} {
		var stderr bytes.Buffer
		cache := t.TempDir() + "/cache"
		code := (&runner{stdout: &stderr, stderr: &stderr}).main(t.Context(), append([]string{"-cache", cache}, strings.Fields(args)...))
		if code != exitFailed || !regexp.MustCompile(`"(ipv5|four)": want `).MatchString(stderr.String()) {
			t.Errorf("%s: exit code %d, %s", args, code, &stderr)
		}
		if _, err := os.Stat(cache); err == nil {
			t.Errorf("%s: something was built", args)
		}
	}
}

// TestDocument compares the document with what its summary says, and with the specs that no group runs.
func TestDocument(t *testing.T) {
	data, err := os.ReadFile("../../docs/kubernetes-specs.md")
	if err != nil {
		t.Fatal(err)
	}
	document := string(data)
	summary, err := specs.Load("../../docs/kubernetes-specs.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(summary.Runs) == 0 {
		t.Error("the summary has no runs")
	}
	want, err := summary.In(document)
	if err != nil {
		t.Fatal(err)
	}
	if document != want {
		t.Error("docs/kubernetes-specs.md differs from docs/kubernetes-specs.json: run make test-k8s-table")
	}
	for _, r := range reasons {
		if row := "| `" + strings.ReplaceAll(r[0], "|", `\|`) + "` | " + r[1] + " |"; !strings.Contains(document, row) {
			t.Errorf("docs/kubernetes-specs.md lacks the row %s", row)
		}
	}
}

// TestGroups has specs that each group runs, and does not.
func TestGroups(t *testing.T) {
	for group, wants := range map[string]map[string]bool{
		"conformance": {
			"[sig-network] DNS should provide DNS for services  [Conformance]": true,
			"[sig-network] DNS should support configurable pod resolv.conf":    false,
		},
		"others": {
			"[sig-network] DNS should support configurable pod resolv.conf":                           true,
			"[sig-network] DNS should provide DNS for services  [Conformance]":                        false,
			"[sig-network] Services should work after restarting kube-proxy [Disruptive]":             false,
			"[sig-network] Networking should check kube-proxy urls":                                   false,
			"[sig-network] Netpol NetworkPolicy between server and client should deny ingress access": false,
		},
		"netpol": {
			"[sig-network] Netpol NetworkPolicy between server and client should deny ingress access":            true,
			"[sig-network] Netpol [Feature:SCTPConnectivity] NetworkPolicy between server and client using SCTP": false,
			"[sig-network] Netpol should not mistakenly treat 'protocol: SCTP' as 'protocol: TCP'":               true,
		},
		"short": {
			"[sig-network] Services should serve a basic endpoint from pods  [Conformance]":            true,
			"[sig-network] LoadBalancers [Feature:LoadBalancer] should only allow access from service": false,
		},
	} {
		for name, want := range wants {
			g := groups[group]
			if got := regexp.MustCompile(g.Focus).MatchString(name) && !regexp.MustCompile(g.Skip).MatchString(name); got != want {
				t.Errorf("%s: %s: %v", group, name, got)
			}
		}
	}
}
