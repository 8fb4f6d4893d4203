// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func TestOpen(t *testing.T) {
	ns := testkit.Namespace(t, "open")
	before := testkit.Snapshot(t, ns)
	for _, kind := range []Kind{TUN, TAP} {
		for _, offload := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/offload=%t", kind, offload), func(t *testing.T) {
				d := testkit.Must(Open(ns, Options{Name: "left", Kind: kind, Offload: offload, MTU: 1400,
					Addresses: leftAddresses}))(t)
				testkit.Check(t, d.Name() == "left" && d.kind == kind && d.offload == offload && d.mtu == 1400,
					"it is %s, kind %s, offload %t, MTU %d", d.Name(), d.kind, d.offload, d.mtu)
				device := testkit.Must(rtnl.In(ns).Device("left"))(t)
				testkit.Check(t, device.Up && device.MTU == 1400 && device.Kind == "tun" && (len(device.MAC) > 0) == (kind == TAP),
					"the kernel has %+v", device)
				for _, want := range leftAddresses {
					testkit.Check(t, strings.Contains(fmt.Sprint(device.Addrs), want.String()),
						"address %s is missing of %v", want, device.Addrs)
				}
				routes := ip(t, ns, "route show dev left") + ip(t, ns, "-6 route show dev left")
				testkit.Check(t, strings.Contains(routes, "10.9.0.0/24") && strings.Contains(routes, "fd00:9::/64"),
					"routes: %s", routes)
				tentative := ip(t, ns, "-6 addr show dev left scope global tentative")
				testkit.Check(t, tentative == "", "an address can't be used yet: %s", tentative)
				offloads := testkit.Must(rtnl.In(ns).Offloads("left"))(t)
				testkit.Check(t, offloads["tso"] == offload && offloads["tx-checksum"] == offload, "offloads: %v", offloads)
				testkit.Succeed(t, d.Close())
				_, err := rtnl.In(ns).Device("left")
				testkit.Check(t, errors.Is(err, fs.ErrNotExist), "it is there after Close (%v)", err)
			})
		}
	}
	after := testkit.Snapshot(t, ns)
	testkit.Check(t, after == before, "afterwards the namespace is another:\n%s\nbefore:\n%s", after, before)
}

func TestOpenPicksName(t *testing.T) {
	ns := testkit.Namespace(t, "open")
	for _, want := range []string{"tun0", "tun1"} {
		d := open(t, ns, Options{})
		testkit.Check(t, d.Name() == want && d.mtu == 1500, "got %s with MTU %d, want %s with 1500", d.Name(), d.mtu, want)
	}
}

// TestOpenPersistent opens what another program made, leaves it when it closes,
// and does not inherit what was agreed on with offload.
func TestOpenPersistent(t *testing.T) {
	ns, other := testkit.Namespace(t, "left"), testkit.Namespace(t, "right")
	ip(t, ns, "tuntap add left mode tun")
	ip(t, ns, "addr add 10.9.0.1/24 dev left")
	for _, offload := range []bool{true, false, true} {
		left := open(t, ns, Options{Name: "left", Offload: offload})
		right := open(t, other, Options{Name: "right", Offload: offload, Addresses: rightAddresses})
		stop := background(t, switching(left, right))
		server := testkit.Echo(t, other, "tcp", "10.9.0.2:0")
		_, err := testkit.RoundTrip(t, ns, "tcp", server.String(), payload(1<<20))
		testkit.Check(t, err == nil, "offload %t: %v", offload, err)
		testkit.Succeed(t, errors.Join(stop(), left.Close(), right.Close()))
		device, err := rtnl.In(ns).Device("left")
		testkit.Check(t, err == nil && len(device.Addrs) != 0, "the persistent device after Close: %+v, %v", device, err)
	}
}

func TestOpenFails(t *testing.T) {
	ns := testkit.Namespace(t, "open")
	ip(t, ns, "tuntap add persistent mode tap")
	testkit.Succeed(t, rtnl.In(ns).SetSysctl("net/ipv6/conf/all/disable_ipv6", "1"))
	testkit.Succeed(t, rtnl.In(ns).SetSysctl("net/ipv6/conf/default/disable_ipv6", "1"))
	open(t, ns, Options{Name: "busy"})
	before := testkit.Snapshot(t, ns)
	for _, test := range []struct {
		options Options
		culprit string
	}{
		{Options{Name: "lo"}, `"lo"`},
		{Options{Name: "busy"}, `another program`},
		{Options{Name: "persistent"}, `is not a TUN device`},
		{Options{Name: "a name"}, `"a name"`},
		{Options{Name: "a/b"}, `"a/b"`},
		{Options{Name: "tun%d"}, `"tun%d"`},
		{Options{Name: ".."}, `".."`},
		{Options{Name: "sixteen-letters-"}, `"sixteen-letters-"`},
		{Options{Name: "x", Kind: 7}, `kind 7`},
		{Options{Name: "x", MTU: 67}, `MTU 67`},
		{Options{Name: "x", MTU: 65536}, `MTU 65536`},
		{Options{Name: "x", MTU: -1}, `MTU -1`},
		{Options{Name: "x", MTU: 1279, Addresses: leftAddresses}, `fd00:9::1/64`},
		{Options{Name: "x", Addresses: prefixes("224.0.0.1/4")}, `224.0.0.1/4`},
		{Options{Name: "x", Addresses: prefixes("0.0.0.0/0")}, `0.0.0.0/0`},
		{Options{Name: "x", Addresses: prefixes("::ffff:10.0.0.1/128")}, `10.0.0.1`},
		{Options{Name: "x", Addresses: leftAddresses}, `fd00:9::1/64`}, // made already when it fails
	} {
		d, err := Open(ns, test.options)
		if err == nil {
			_ = d.Close()
			t.Errorf("%+v: opened", test.options)
			continue
		}
		testkit.Check(t, strings.Contains(err.Error(), test.culprit) && !strings.Contains(err.Error(), "\n"),
			"%+v: error %q, want one line with %q", test.options, err, test.culprit)
	}
	after := testkit.Snapshot(t, ns)
	testkit.Check(t, after == before, "after the failures the namespace is another:\n%s\nbefore:\n%s", after, before)
}

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
		testkit.Succeed(t, stop())
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
