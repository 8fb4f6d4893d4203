// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/json"
	"testing"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/load/clock"
)

// TestHistogramIsWhole reads a histogram from a reply.
func TestHistogramIsWhole(t *testing.T) {
	sent := Reply{Histogram: Histogram{hdrhistogram.New(1, int64(time.Minute), 3)}}
	for _, ns := range []int64{12_345, 59_000_000_000} {
		if err := sent.Histogram.RecordValue(ns); err != nil {
			t.Fatal(err)
		}
	}
	data, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var got Reply
	if err := json.Unmarshal(data, &got); err != nil || !got.Histogram.Equals(sent.Histogram.Histogram) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`{"histogram":"no histogram"}`), &got); err == nil {
		t.Error("a broken histogram is taken")
	}
}

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
