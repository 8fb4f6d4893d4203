// SPDX-License-Identifier: Apache-2.0

package load

import (
	"testing"

	"mustang/internal/load/clock"
)

// TestPerUnit divides by the units, if there are any.
func TestPerUnit(t *testing.T) {
	m := Measurement{Units: 4, Machine: clock.MachineTime{BusySeconds: 2, NetRX: 6, NetTX: 2}}
	if m.CPUMicrosPerUnit() != 500_000 || m.SoftirqsPerUnit() != 2 {
		t.Errorf("%g us and %g softirqs per unit", m.CPUMicrosPerUnit(), m.SoftirqsPerUnit())
	}
	if (Measurement{Machine: m.Machine}).CPUMicrosPerUnit() != 0 ||
		(Measurement{Machine: m.Machine}).SoftirqsPerUnit() != 0 {
		t.Error("figures per unit of nothing")
	}
}
