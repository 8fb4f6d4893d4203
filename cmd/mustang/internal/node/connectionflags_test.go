// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"

	"github.com/spf13/pflag"
)

// TestFilterFlags parses ends of connections in all forms.
func TestFilterFlags(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:0", "10.0.0.1:80": "10.0.0.1:80", "fd00::1": "[fd00::1]:0", "[fd00::1]": "[fd00::1]:0", "[fd00::1]:80": "[fd00::1]:80",
		"::ffff:10.0.0.1": "10.0.0.1:0", "[::ffff:10.0.0.1]:80": "10.0.0.1:80",
		"10.0.0.1:": "", "10.0.0.1:0": "", "10.0.0.1:65536": "", ":80": "", "host": "", "10.0.0.0/8": "", "[fd00::1": "", "fd00::1]": "", "[fd00::1]80": "",
	} {
		var f filterFlags
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.Add(flags)
		if !f.IsEmpty() {
			t.Fatal("no flag is a filter")
		}
		if err := flags.Parse([]string{"--service", text}); err != nil {
			t.Fatal(err)
		}
		filter, err := f.Parse()
		if got := fmt.Sprint(filter.Service); (err != nil) != (want == "") || err == nil && got != want || f.IsEmpty() {
			t.Errorf("%q is %s, want %q; %v", text, got, want, err)
		}
	}
}
