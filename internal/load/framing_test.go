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

// TestHeader decodes an encoded header, and refuses invalid ones.
func TestHeader(t *testing.T) {
	spec := Spec{Workload: UDPStream, Flows: MaxFlows, Duration: time.Second, Warmup: 5, Limit: 1 << 40, Settle: 3, Size: 200, Window: 1 << 33, Stall: 7, Congestion: "sixteen-long-cc."}
	session := &session{spec: spec, congestion: spec.Congestion, id: flowID{run: 1 << 60}}
	got := encodeHeader(udpStream{}, session)
	if len(got) != headerSize {
		t.Fatalf("%d bytes, want %d", len(got), headerSize)
	}
	a, err := decodeHeader(got)
	if err != nil || a.spec != spec || a.workload != (udpStream{}) || a.run != 1<<60 {
		t.Errorf("decoded %+v, %v", a, err)
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"magic":    func(b []byte) []byte { b[0] = 'X'; return b },
		"workload": func(b []byte) []byte { b[4] = 0; return b },
		"short":    func(b []byte) []byte { return b[:headerSize-1] },
		"no flow":  func(b []byte) []byte { b[5] = 0; return b },
		"flows":    func(b []byte) []byte { b[5] = MaxFlows + 1; return b },
		"rr flows": func(b []byte) []byte { b[4] = tcpRR{}.code(); return b },
		"duration": func(b []byte) []byte { b[24] = 0xff; return b },
		"size":     func(b []byte) []byte { b[56] = 0xff; return b },
		"stall":    func(b []byte) []byte { clear(b[32:40]); return b },
	} {
		if _, err := decodeHeader(spoil(encodeHeader(udpStream{}, session))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestWorkloads checks that names and codes are unique and found again.
func TestWorkloads(t *testing.T) {
	codes := map[byte]bool{}
	for _, w := range workloads() {
		byName, err := lookup(w.name())
		if err != nil || byName != w {
			t.Errorf("lookup(%q) = %v, %v", w.name(), byName, err)
		}
		byCode, err := lookupCode(w.code())
		if err != nil || byCode != w || codes[w.code()] {
			t.Errorf("lookupCode(%q) = %v, %v", w.code(), byCode, err)
		}
		codes[w.code()] = true
	}
}

// TestMeasurementJSON reads a measurement from its JSON form.
func TestMeasurementJSON(t *testing.T) {
	m := Measurement{Workload: TCPRR, Count: 2, Units: 2, Seconds: 1, Rate: 2, Retransmits: 3, Flows: 1,
		ClientLocals: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:2")},
		Histogram:    hdrhistogram.New(histogramMin, histogramMax, histogramDigits)}
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
