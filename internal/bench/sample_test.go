// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// TestFigureFollowsClock checks the figures of samples of both clocks.
func TestFigureFollowsClock(t *testing.T) {
	counting, timing := Options{Count: result.ClockInstructions}, Options{}
	packets := load.Measurement{Workload: load.UDPStream, Count: 2000, Sent: 10, Received: 10, BusyNanos: 50_000,
		Rate: 7, Unit: "Gbit/s", CPUUnit: "MB", Machine: clock.MachineTime{NetRX: 18, NetTX: 2}}
	f, err := counting.figure(packets)
	if err != nil || f.value != 5000 || f.unit != result.UnitPerPacket || f.cpu != 0 || f.softirqs != 2 || f.timed() {
		t.Errorf("packets: %+v, %v", f, err)
	}
	transactions := load.Measurement{Workload: load.TCPRR, Count: 4, BusyNanos: 1000}
	if f, err := counting.figure(transactions); err != nil || f.value != 250 || f.unit != result.UnitPerTransaction {
		t.Errorf("transactions: %+v, %v", f, err)
	}
	if f, err := timing.figure(packets); err != nil || f.value != 7 || f.unit != "Gbit/s" || !f.timed() {
		t.Errorf("time: %+v, %v", f, err)
	}
	lossy := packets
	lossy.Received--
	if _, err := counting.figure(lossy); err == nil || !strings.Contains(err.Error(), "1 of 10") {
		t.Errorf("with a lost packet: %v", err)
	}
	packets.BusyNanos = 0
	if _, err := counting.figure(packets); err == nil {
		t.Error("a figure without counted instructions")
	}
}
