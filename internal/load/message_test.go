// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
)

// FuzzReply reads messages of an agent on another machine. Whatever they are, they end in
// a reply or an error, with texts that are safe to print.
func FuzzReply(f *testing.F) {
	histogram := hdrhistogram.New(histogramMin, histogramMax, histogramDigits)
	_ = histogram.RecordValue(12_345)
	measured, err := json.Marshal(reply{ID: 7, Measurement: &Measurement{Workload: TCPRR, Histogram: histogram}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(measured)
	for _, seed := range []string{
		`{"id":0,"hello":{"protocol":1,"version":"v1.0.0"}}`, `{"id":0,"hello":{"protocol":2,"version":"\u001b[31m"}}`,
		`{"id":1,"address":"10.0.0.1:7"}`, `{"id":2,"error":{"message":"connect: refused\nby it","errno":111}}`,
		`{"id":3,"served":{"workload":"tcp_rr","local":"[::1]:5"}}`, `{"id":4,"measurement":{"histogram":"HISTFAAAAA=="}}`,
		"Last login: Sun Nov 22\n{}", strings.Repeat("[", 5000), "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		messages := newMessageReader(strings.NewReader(string(data)), maxReply)
		for {
			var r reply
			err := messages.read(&r)
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil {
				err = r.checkHello()
			}
			if err == nil && r.Error != nil {
				err = errors.New(printable(r.Error.Message))
			}
			if err == nil {
				continue
			}
			if text := err.Error(); strings.ContainsAny(text, "\x1b\n\r") || len(text) > 4*maxText+1000 {
				t.Errorf("error %q", text)
			}
			return
		}
	})
}

// FuzzHeader decodes headers and datagrams of clients.
func FuzzHeader(f *testing.F) {
	for _, w := range workloads() {
		header := encodeHeader(w, &session{spec: Spec{Workload: w.name(), Stall: 1, Congestion: "cubic"}})
		f.Add(header)
		f.Add(datagram{kind: datagramHello, flow: 3}.with(header))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, ok := parseDatagram(data); ok {
			again := make([]byte, MinDatagram)
			d.put(again)
			if got, ok := parseDatagram(again); !ok || got != d {
				t.Errorf("%+v becomes %+v", d, got)
			}
			data = data[MinDatagram:]
		}
		h, err := decodeHeader(data)
		if err != nil {
			return
		}
		if h.spec.Flows < 1 || h.spec.Flows > MaxFlows || h.spec.size() > maxDatagram || h.spec.stall() <= 0 || len(h.spec.Congestion) > maxCongestion {
			t.Errorf("header with %+v", h.spec)
		}
	})
}

// TestPrintable checks that the text of another machine becomes one line of bounded length.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		"one\n\n  two\r\n":             "one; two",
		"\x1b]0;title\a \x00 \xff é":   "?]0;title? ? \ufffd é",
		strings.Repeat("é", maxText+5): "..." + strings.Repeat("é", maxText),
	} {
		if got := printable(text); got != want {
			t.Errorf("printable(%q) = %q, want %q", text, got, want)
		}
	}
}
