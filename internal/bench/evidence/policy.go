// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"maps"
	"slices"

	"mustang/internal/lab"
	"mustang/internal/load"
)

// policyRules reports whether the kernel's firewall rules enforce a network policy.
func (p Path) policyRules() bool { return p.Lab.Policy != "" && p.Lab.Policy != lab.ViaEBPFTC }

// connections returns the least number of connections that the flow has opened.
func (c *sampleCheck) connections() uint64 {
	if c.measurement.Workload == load.TCPCRR {
		return c.measurement.Count
	}
	return 1
}

// rules returns the least increases of the counters of a network policy's rules. The packet that is denied is that of
// [Recorder.Start].
func (c *sampleCheck) rules() map[string]uint64 {
	if !c.policyRules() {
		return nil
	}
	toServer, toClient := c.packets()
	return map[string]uint64{"established": toServer + toClient, "allowed": c.connections(), "denied": 1}
}

// checkPolicy checks that a network policy has judged the connections, by its rules or by the eBPF programs, and that there is none
// where the path has none.
func (c *sampleCheck) checkPolicy() {
	if runs := c.evidence.ProgramRuns["tracked"]; c.Lab.Policy == "" && runs > 0 {
		c.add("a network policy has judged %d connections", runs)
	}
	least := c.rules()
	for _, other := range c.others {
		for name, packets := range other.rules {
			least[name] += packets
		}
	}
	for _, name := range slices.Sorted(maps.Keys(least)) {
		if got := c.evidence.Rules[name]; got < least[name] {
			c.add("rules of the policy counted %d packets that were %s, want at least %d", got, name, least[name])
		}
	}
}
