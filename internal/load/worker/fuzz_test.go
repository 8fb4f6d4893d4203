// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// FuzzCounts reads any bytes as a server's counts.
func FuzzCounts(f *testing.F) {
	b := make([]byte, countsSize)
	datagram{kind: datagramSums, flow: 1, number: 2}.put(b)
	datagramCounts{3, 4, 5, 6}.put(b)
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
		spec := load.Spec{Workload: load.TCPStream, Reverse: reverse, Stall: 20 * time.Second}
		client, server := sessionPair(t, spec)
		done := make(chan error, 1)
		go func() {
			_, err := serveBlocks(server)
			server.close()
			done <- err
		}()
		go func() {
			_, _ = client.Write(b)
			_ = unix.Shutdown(client.fd, unix.SHUT_WR)
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
		header := encodeHeader(w, load.Spec{Workload: w.name, Stall: 1})
		f.Add(header)
		f.Add(slices.Concat(header[:24], make([]byte, 16), header[40:])) // requests of no bytes
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
		if err := h.spec.CheckTraffic(); err != nil || h.spec.Flows < 1 || h.spec.StallTime() <= 0 {
			t.Errorf("header with %+v: %v", h.spec, err)
		}
		if again := encodeHeader(h.workload, h.spec); !bytes.Equal(again[:6], data[:6]) || !bytes.Equal(again[8:], data[8:]) {
			t.Errorf("%x becomes %x", data, again)
		}
	})
}

// sessionPair returns two ends of a connection over loopback.
func sessionPair(t testing.TB, spec load.Spec) (client, server *session) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	near, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	sessions := [2]*session{}
	for i, conn := range []net.Conn{near, far} {
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			t.Fatalf("connection is a %T", conn)
		}
		if sessions[i], err = newSession(tcp, spec); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sessions[i].close)
	}
	return sessions[0], sessions[1]
}
