// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/load/clock"
)

// TestMeasurementJSON reads a measurement from its JSON form.
func TestMeasurementJSON(t *testing.T) {
	m := Measurement{Workload: TCPRR, Count: 2, Units: 2, Seconds: 1, Rate: 2, Retransmits: 3, Flows: 1,
		ClientLocal: netip.MustParseAddrPort("10.0.0.1:2"), Histogram: hdrhistogram.New(1, int64(time.Minute), 3)}
	for _, ns := range []int64{12_345, 59_000_000_000} {
		if err := m.Histogram.RecordValue(ns); err != nil {
			t.Fatal(err)
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var got Measurement
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if !got.Histogram.Equals(m.Histogram) {
		t.Error("the histogram changed")
	}
	got.Histogram, m.Histogram = nil, nil
	if !reflect.DeepEqual(got, m) {
		t.Errorf("got %+v, want %+v", got, m)
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
	if (Measurement{Machine: m.Machine}).CPUMicrosPerUnit() != 0 || (Measurement{Machine: m.Machine}).SoftirqsPerUnit() != 0 {
		t.Error("figures per unit of nothing")
	}
}
