// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

type sample struct {
	measurement load.Measurement
	figure      figure
	evidence    result.Evidence
	lab         *lab.Lab // nil if there is none
}

type figure struct {
	value         float64
	unit, cpuUnit string
	cpu, softirqs float64 // per cpuUnit
}

// timed reports whether the figure is based on time, not on instructions.
func (f figure) timed() bool {
	return f.unit != result.UnitPerPacket && f.unit != result.UnitPerTransaction
}

func (o Options) figure(m load.Measurement) (figure, error) {
	if o.counting() {
		return countedFigure(m)
	}
	return figure{m.Rate, m.Unit, m.CPUUnit, m.CPUMicrosPerUnit(), m.SoftirqsPerUnit()}, nil
}

// countedFigure returns the instructions per packet or transaction. It is an error if
// packets were lost, since their cost is unknown.
func countedFigure(m load.Measurement) (figure, error) {
	f := figure{unit: result.UnitPerTransaction, cpuUnit: "transaction"}
	count := m.Count
	if m.Workload == load.UDPStream {
		f.unit, f.cpuUnit, count = result.UnitPerPacket, "packet", m.Received
		if m.Received < m.Sent {
			return figure{}, fmt.Errorf("%d of %d packets were lost, their cost is unknown", m.Sent-m.Received, m.Sent)
		}
	}
	if count == 0 || m.BusyNanos == 0 {
		return figure{}, errors.New("no instructions were counted")
	}
	f.value = float64(m.BusyNanos) / float64(count)
	f.softirqs = float64(m.Machine.NetRX+m.Machine.NetTX) / float64(count)
	return f, nil
}
