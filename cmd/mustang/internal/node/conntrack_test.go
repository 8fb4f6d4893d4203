// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"mustang/internal/testkit"
)

// TestFilterFlags parses ends of connections in all forms.
func TestFilterFlags(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:0", "10.0.0.1:80": "10.0.0.1:80", "fd00::1": "[fd00::1]:0", "[fd00::1]": "[fd00::1]:0",
		"[fd00::1]:80":    "[fd00::1]:80",
		"::ffff:10.0.0.1": "10.0.0.1:0", "[::ffff:10.0.0.1]:80": "10.0.0.1:80",
		"10.0.0.1:": "", "10.0.0.1:0": "", "10.0.0.1:65536": "", ":80": "", "host": "", "10.0.0.0/8": "", "[fd00::1": "",
		"fd00::1]": "", "[fd00::1]80": "",
	} {
		end, err := parseEnd(text)
		if got := end.String(); (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("%q is %s, want %q; %v", text, got, want, err)
		}
	}
}

// TestDirectHasNoService lists a connection to a service, and one that is direct.
func TestDirectHasNoService(t *testing.T) {
	c := connectionJSON{Client: "10.0.0.1:4000", Source: "10.0.0.1:4000", Service: "10.96.0.1:80",
		Backend: "10.0.0.2:8080", ServiceID: 1}
	row := connectionTable.Row(c)
	testkit.Check(t, row[3] == c.Service && row[4] == "", "%q", row)
	c.ServiceID = 0
	row = connectionTable.Row(c)
	testkit.Check(t, row[3] == "", "a direct connection: %q", row)
}
