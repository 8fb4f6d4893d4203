// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"testing"

	"mustang/internal/load"
)

// TestHeader decodes an encoded header, and refuses invalid ones.
func TestHeader(t *testing.T) {
	spec := load.Spec{Workload: load.TCPStream, Flows: load.MaxFlows, Request: 100, Response: 1 << 20, Stall: 7, Reverse: true}
	stream := named(t, load.TCPStream)
	got := encodeHeader(stream, spec)
	if len(got) != headerSize {
		t.Fatalf("%d bytes, want %d", len(got), headerSize)
	}
	if a, err := decodeHeader(got); err != nil || a.spec != spec || a.workload.code != stream.code {
		t.Errorf("decoded %+v, %v", a, err)
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"magic":    func(b []byte) []byte { b[0] = 'X'; return b },
		"workload": func(b []byte) []byte { b[4] = 0; return b },
		"short":    func(b []byte) []byte { return b[:headerSize-1] },
		"no flow":  func(b []byte) []byte { b[5] = 0; return b },
		"flows":    func(b []byte) []byte { b[5] = load.MaxFlows + 1; return b },
		"rr flows": func(b []byte) []byte { b[4] = 'r'; return b },
		"stall":    func(b []byte) []byte { clear(b[8:16]); return b },
		"negative": func(b []byte) []byte { b[8] = 0xff; return b },
		"window":   func(b []byte) []byte { b[23] = 1; return b },
		"request":  func(b []byte) []byte { b[24] = 0xff; return b },
		"response": func(b []byte) []byte { b[33] = 1; return b },
		"delay":    func(b []byte) []byte { b[47] = 1; return b },
		"reverse":  func(b []byte) []byte { b[4], b[5] = 'r', 1; return b },
	} {
		if _, err := decodeHeader(spoil(encodeHeader(stream, spec))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// named finds a workload.
func named(t *testing.T, name string) workload {
	t.Helper()
	w, err := lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return w
}
