// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"slices"
	"testing"
	"time"

	"mustang/internal/load"
)

// TestHeader decodes an encoded header, and refuses invalid ones.
func TestHeader(t *testing.T) {
	spec := load.Spec{Workload: load.UDPStream, Flows: load.MaxFlows, Duration: time.Second, Warmup: 5, Limit: 1 << 40, Settle: 3, Request: 100, Response: 1 << 20, Standing: true,
		Delay: 9, Size: 200, Window: 1 << 33, Stall: 7, Congestion: "sixteen-long-cc."}
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
		"flows":    func(b []byte) []byte { b[5] = load.MaxFlows + 1; return b },
		"rr flows": func(b []byte) []byte { b[4] = tcpRR{}.code(); return b },
		"duration": func(b []byte) []byte { b[24] = 0xff; return b },
		"size":     func(b []byte) []byte { b[56] = 0xff; return b },
		"stall":    func(b []byte) []byte { clear(b[32:40]); return b },
		"request":  func(b []byte) []byte { b[72] = 0xff; return b },
		"delay":    func(b []byte) []byte { b[88] = 1; return b },
		"response": func(b []byte) []byte { b[81] = 1; return b },
		"reverse":  func(b []byte) []byte { b[6] |= flagReverse; return b },
	} {
		if _, err := decodeHeader(spoil(encodeHeader(udpStream{}, session))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestWorkloads checks that codes are unique and found again, and that names are those of a spec.
func TestWorkloads(t *testing.T) {
	codes, names := map[byte]bool{}, []string(nil)
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
		names = append(names, w.name())
	}
	if !slices.Equal(names, load.Workloads()) {
		t.Errorf("workloads %q, want %q", names, load.Workloads())
	}
}
