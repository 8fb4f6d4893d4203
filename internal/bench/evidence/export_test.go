// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"mustang/internal/load"
	"mustang/internal/result"
)

// Observation is the input of the check of one sample.
type Observation struct {
	Path                Path
	Measurement         load.Measurement
	Evidence            result.Evidence
	Tracked, Translated bool
}

// check returns the check of the observation.
func (o Observation) check() sampleCheck {
	return sampleCheck{Path: o.Path, measurement: o.Measurement, evidence: o.Evidence, tracked: o.Tracked, translated: o.Translated}
}

// Findings returns the findings of a path in a lab.
func (o Observation) Findings() []string {
	c := o.check()
	c.check()
	return c.evidence.Findings
}

// FindingsFromMachine returns those of a path from this machine itself.
func (o Observation) FindingsFromMachine() []string {
	c := o.check()
	c.checkFromMachine()
	return c.evidence.Findings
}
