// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"mustang/internal/lab"
)

// TestViaSaysDatapath selects the kernel's datapath for an implementation that only this datapath has, unless the flag
// names another.
func TestViaSaysDatapath(t *testing.T) {
	for _, c := range []struct{ datapath, via, want string }{
		{"", lab.ViaIPTables, lab.DatapathKernel}, {"", lab.ViaIPVS, lab.DatapathKernel},
		{"", lab.ViaNone, lab.DatapathKernel},
		{"", "", lab.DatapathEBPF}, {"", lab.ViaEBPFSocket, lab.DatapathEBPF}, {lab.DatapathEBPF, lab.ViaIPTables,
			lab.DatapathEBPF},
	} {
		o := lab.Options{Topology: lab.TopologyPodLinks, Datapath: lab.DatapathEBPF, Via: c.via}
		isSet := func(flag string) bool { return flag == "datapath" && c.datapath != "" }
		if err := (labFlags{}).apply(&o, isSet); err != nil || o.Datapath != c.want {
			t.Errorf("via %q: datapath %q, want %q; %v", c.via, o.Datapath, c.want, err)
		}
	}
}
