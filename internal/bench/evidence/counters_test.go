// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"strings"
	"testing"

	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestReplacedDeviceIsFound replaces a device between two readings: its counters begin anew, and prove nothing.
func TestReplacedDeviceIsFound(t *testing.T) {
	pod, other := testkit.VethPair(t)
	read := func() counters {
		t.Helper()
		c, err := readCounters(nil)
		if err == nil {
			err = c.readDevices("pod-a", pod)
		}
		testkit.Succeed(t, err)
		return c
	}
	before := read()
	if found := read().since(before).Findings; len(found) > 0 {
		t.Errorf("the same device: %v", found)
	}
	device := Device{Place: "pod-a", Name: "left"}
	testkit.Succeed(t, rtnl.DeleteInChild(pod, before.devices[device].index))
	if err := rtnl.AddVeth(rtnl.VethEnd{Namespace: pod, Name: "left"}, rtnl.VethEnd{Namespace: other, Name: "right"},
		1500); err != nil {
		t.Fatal(err)
	}
	found := strings.Join(read().since(before).Findings, "; ")
	testkit.Check(t, strings.Contains(found, "left in pod-a was replaced"), "found %q", found)
}

// Observation is the input of the check of one sample.
type Observation struct {
	Path                            Path
	Measurement                     load.Measurement
	Evidence                        result.Evidence
	Tracked, Translated, Redirected bool
	Small                           []string
}

func (o Observation) check() *sampleCheck {
	return &sampleCheck{Path: o.Path, measurement: o.Measurement, evidence: o.Evidence, tracked: o.Tracked,
		translated: o.Translated, redirected: o.Redirected, small: o.Small}
}

// Findings returns the findings of a path in a lab.
func (o Observation) Findings() []string {
	return checkAll([]*sampleCheck{o.check()})[0].Findings
}

// FindingsFromMachine returns the findings of a path from this machine itself.
func (o Observation) FindingsFromMachine() []string {
	c := o.check()
	c.fromMachine = true
	return checkAll([]*sampleCheck{c})[0].Findings
}

// FindingsSideBySide returns the findings of each of several flows of one lab, which all
// have the counters of the first.
func FindingsSideBySide(flows ...Observation) [][]string {
	var checks []*sampleCheck
	for _, o := range flows {
		o.Evidence.Devices, o.Evidence.ProgramRuns = flows[0].Evidence.Devices, flows[0].Evidence.ProgramRuns
		checks = append(checks, o.check())
	}
	var out [][]string
	for _, e := range checkAll(checks) {
		out = append(out, e.Findings)
	}
	return out
}
