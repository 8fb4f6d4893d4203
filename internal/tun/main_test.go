// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }

// Addresses of the two devices of tests.
var (
	leftAddresses  = prefixes("10.9.0.1/24", "fd00:9::1/64")
	rightAddresses = prefixes("10.9.0.2/24", "fd00:9::2/64")
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// open opens a device, which is closed when the test is over.
func open(t testing.TB, ns *netns.Namespace, options Options) *Device {
	t.Helper()
	d := testkit.Must(Open(ns, options))(t)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// background runs fn until the test ends or stop is called, which returns fn's error.
func background(t testing.TB, fn func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stopped := false
	stop = func() error {
		cancel()
		stopped = true
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return fmt.Errorf("still running a minute after its context ended")
		}
	}
	t.Cleanup(func() {
		if stopped {
			return
		}
		err := stop()
		testkit.Check(t, err == nil, "%v", err)
	})
	return stop
}

func payload(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return data
}

func ip(t testing.TB, ns *netns.Namespace, args string) string {
	t.Helper()
	return testkit.Command(t, ns, "ip "+args)
}

// counters are the traffic of a device; with offload they count segments.
type counters struct{ ReadPackets, ReadBytes, WrittenPackets, WrittenBytes, Dropped uint64 }

func countersOf(d *Device) counters {
	return counters{d.read.packets.Load(), d.read.bytes.Load(), d.written.packets.Load(), d.written.bytes.Load(),
		d.dropped.Load()}
}
