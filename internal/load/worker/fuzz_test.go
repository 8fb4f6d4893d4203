// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"mustang/internal/load"
)

// FuzzCounts reads any bytes as a server's counts.
func FuzzCounts(f *testing.F) {
	b := make([]byte, countsSize)
	datagram{kind: datagramSums, flow: 1, number: 2}.put(b)
	datagramCounts{3, 4, 5, 6, 7}.put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		counts, ok := parseCounts(b)
		if !ok {
			return
		}
		again := bytes.Clone(b)
		if counts.put(again); !bytes.Equal(again, b) {
			t.Errorf("%x becomes %x", b, again)
		}
		if _, ok := counts.since(counts); !ok {
			t.Errorf("%+v steps back", counts)
		}
	})
}

// FuzzBlocks lets a server read any bytes as a stream in slices and as the orders of a
// reversed one: it ends with the stream.
func FuzzBlocks(f *testing.F) {
	f.Add(make([]byte, orderSize), true)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1, markLead, 0, 0, 0, 0, 0, 0, 0, 1, markCount, 0, 0, 0, 0, 0, 0, 0, 0, markEnd}, true)
	f.Add(bytes.Repeat([]byte{markEnd}, streamBuffer), false)
	f.Fuzz(func(t *testing.T, b []byte, reverse bool) {
		spec := load.Spec{Workload: load.TCPStream, Reverse: reverse, Stall: 20 * time.Second, Standing: true}
		client, server := sessionPair(t, spec)
		server.run = &serverRun{spec: load.Spec{Flows: 1}, publish: func(load.Served) {}}
		done := make(chan error, 1)
		go func() { done <- serveBlocks(server) }()
		go func() {
			_, _ = client.Write(b)
			_ = client.closeWrite()
			buf := make([]byte, streamBuffer)
			for {
				if _, err := client.read(buf); err != nil {
					client.interrupt()
					return
				}
			}
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Error("the server hangs")
		}
		client.interrupt()
	})
}

// FuzzHeader decodes headers and datagrams of clients.
func FuzzHeader(f *testing.F) {
	for _, w := range workloads() {
		header := encodeHeader(w, &session{spec: load.Spec{Workload: w.name(), Stall: 1, Congestion: "cubic"}})
		f.Add(header)
		f.Add(slices.Concat(header[:72], make([]byte, 16), header[88:])) // requests of no bytes
		f.Add(datagram{kind: datagramHello, flow: 3}.with(header))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, ok := parseDatagram(data); ok {
			again := make([]byte, load.MinDatagram)
			d.put(again)
			if got, ok := parseDatagram(again); !ok || got != d {
				t.Errorf("%+v becomes %+v", d, got)
			}
			data = data[load.MinDatagram:]
		}
		h, err := decodeHeader(data)
		if err != nil {
			return
		}
		if h.spec.Flows < 1 || h.spec.Flows > load.MaxFlows || h.spec.DatagramSize() > load.MaxDatagram || h.spec.StallTime() <= 0 || len(h.spec.Congestion) > load.MaxCongestion {
			t.Errorf("header with %+v", h.spec)
		}
		if err := h.spec.CheckSizes(); err != nil || h.spec.FlowCount() > 1 && !h.spec.IsStream() {
			t.Errorf("header with %+v: %v", h.spec, err)
		}
		session := &session{spec: h.spec, congestion: h.spec.Congestion, id: flowID{run: h.run}}
		if again, err := decodeHeader(encodeHeader(h.workload, session)); err != nil || again != h {
			t.Errorf("%+v becomes %+v, %v", h, again, err)
		}
	})
}
