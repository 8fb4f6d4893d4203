// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/testkit"
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
		_, ok = counts.since(counts)
		testkit.Check(t, ok, "%+v steps back", counts)
	})
}

// FuzzBlocks lets a server read any bytes as a stream in slices and as the orders of a
// reversed one: it ends with the stream.
func FuzzBlocks(f *testing.F) {
	f.Add(make([]byte, orderSize), true)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1, kindWarmup, 0, 0, 0, 0, 0, 0, 0, 1, kindMeasured, 0, 0, 0, 0, 0, 0, 0, 0,
		kindEnd}, true)
	f.Add(bytes.Repeat([]byte{kindEnd}, streamBuffer), false)
	f.Fuzz(func(t *testing.T, b []byte, reverse bool) {
		spec := load.Spec{Workload: load.TCPStream, Reverse: reverse, Stall: 20 * time.Second}
		client, server := sessionPair(t, spec)
		done := make(chan error, 1)
		go func() {
			err := serveBlocks(server)
			server.close()
			done <- err
		}()
		go func() {
			if len(b) > 0 {
				_ = client.write(b)
			}
			_ = unix.Shutdown(client.fd, unix.SHUT_WR)
			buf := make([]byte, streamBuffer)
			for {
				if _, err := client.Read(buf); err != nil {
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

// FuzzDatagram reads any bytes as a datagram with a header.
func FuzzDatagram(f *testing.F) {
	for _, workload := range load.Workloads() {
		b, err := datagram{kind: datagramHello, flow: 3}.with(newHeader(load.Spec{Workload: workload, Stall: 1}))
		testkit.Succeed(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, ok := parseDatagram(data)
		if !ok {
			return
		}
		again := make([]byte, load.MinDatagram)
		d.put(again)
		got, ok := parseDatagram(again)
		testkit.Check(t, ok && got == d, "%+v becomes %+v", d, got)
		var h header
		if json.Unmarshal(data[load.MinDatagram:], &h) != nil || h.check(unix.SOCK_DGRAM) != nil {
			return
		}
		if h.Spec.FlowCount() < 1 || h.Spec.StallTime() <= 0 || min(h.Spec.RequestSize(), h.Spec.ResponseSize()) < 1 {
			t.Errorf("header with %+v", h.Spec)
		}
	})
}

// sessionPair returns two ends of a connection over loopback.
func sessionPair(t testing.TB, spec load.Spec) (client, server *session) {
	t.Helper()
	listener, err := listenOn(unix.SOCK_STREAM, netip.MustParseAddrPort("127.0.0.1:0"), "")
	testkit.Succeed(t, err)
	defer listener.close()
	spec.Target = listener.Local
	if client, err = dial(t.Context(), unix.SOCK_STREAM, spec, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.close)
	fd, _, err := unix.Accept4(listener.fd, unix.SOCK_CLOEXEC)
	testkit.Succeed(t, err)
	server = &session{spec: spec, fd: fd}
	t.Cleanup(server.close)
	return client, server
}
