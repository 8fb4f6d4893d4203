// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// wantOtherHost fails the test unless err is one line that names both hosts.
func wantOtherHost(t *testing.T, err error, names ...string) {
	t.Helper()
	var conflict *ConflictError
	if !errors.As(err, &conflict) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("error %v, want a conflict", err)
	}
	for _, name := range names {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not name %q", err, name)
		}
	}
}

// TestTwoHosts adds pods and uplinks of a second host, whose devices have the indexes of the first one's.
func TestTwoHosts(t *testing.T) {
	first, second, d := routed(t), routed(t), openTest(t)
	first.attachBoth(t, d)
	second.run(t, "-n PODA addr add 192.168.20.10/32 dev eth0") // no address is in the way
	second.run(t, "-n PODA addr del "+podA4+"/32 dev eth0")
	second.run(t, "-n PODA addr del "+podA6+"/128 dev eth0")
	second.wire(t)

	_, _, err := d.Endpoints().Put(t.Context(), second.attachment(0))
	wantOtherHost(t, err, first.host.Name(), second.pods[0].Name(), d.objects.Root())
	_, err = d.Uplinks().Put(t.Context(), second.host, "wire")
	wantOtherHost(t, err, first.host.Name(), second.host.Name())
	wantNotFound(t, d.Endpoints().DeleteDevice(t.Context(), second.attachment(0)))
	wantEndpoints(t, d, podA4, podA6, podB4, podB6)
	wantLinks(t, d, 4)

	// One pod of the first host keeps its rows and programs; they are deleted with the next host's first.
	first.run(t, "-n HOST link del va")
	_, _, err = d.Endpoints().Put(t.Context(), second.attachment(0))
	wantOtherHost(t, err, first.host.Name())
	first.run(t, "-n HOST link del vb")
	if _, change, err := d.Endpoints().Put(t.Context(), second.attachment(0)); err != nil || change != Added {
		t.Fatalf("after the first host's pods: %v, %v", change, err)
	}
	wantEndpoints(t, d, "192.168.20.10")
	wantLinks(t, d, 2)
	if _, err := d.Uplinks().Put(t.Context(), second.host, "wire"); err != nil {
		t.Error(err)
	}
	_, _, err = d.Endpoints().Put(t.Context(), first.attachment(0))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a pod without its device: %v", err)
	}
}

// TestUplinkOfOtherHost keeps a host by its uplink alone.
func TestUplinkOfOtherHost(t *testing.T) {
	first, second, d := routed(t), routed(t), openTest(t)
	first.wire(t)
	must(d.Uplinks().Put(t.Context(), first.host, "wire"))(t)
	_, _, err := d.Endpoints().Put(t.Context(), second.attachment(0))
	wantOtherHost(t, err, first.host.Name())
	first.run(t, "-n HOST link del wire")
	second.attachBoth(t, d)
	wantLinks(t, d, 4)
}

// TestSameIndexOnOtherHost names a VM by a device of another host, whose index is that of the endpoint's.
func TestSameIndexOnOtherHost(t *testing.T) {
	testkit.RequireTool(t, "ip")
	d := openTest(t)
	var specs []EndpointSpec
	for range 2 {
		n := newNetwork(t)
		n.run(t, "-n HOST tuntap add dev tap0 mode tap")
		specs = append(specs, vmSpec(n))
	}
	must2(d.Endpoints().Put(t.Context(), specs[0]))(t)
	var deviation *DeviationError
	if err := d.Endpoints().Check(t.Context(), specs[1]); !errors.As(err, &deviation) {
		t.Errorf("check on the other host: %v", err)
	}
	wantNotFound(t, d.Endpoints().DeleteDevice(t.Context(), specs[1]))
	if err := d.Endpoints().Check(t.Context(), specs[0]); err != nil {
		t.Error(err)
	}
	if err := d.Endpoints().DeleteDevice(t.Context(), specs[0]); err != nil {
		t.Error(err)
	}
}

// vmSpec is a VM behind tap0.
func vmSpec(n network) EndpointSpec {
	return EndpointSpec{
		Host: n.host, HostIfName: "tap0", MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}, Addresses: []netip.Addr{netip.MustParseAddr(podA4)},
	}
}
