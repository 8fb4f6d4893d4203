// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/safchain/ethtool"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// testOVSDatabase fails to create a pod half-way, loses a pod with its namespace
// and deletes another: what is left of them in the database is nothing.
func testOVSDatabase(t *testing.T, f *fixture, _ string) {
	rows := func() (count int) {
		withSwitch(t, f.network, func(s ovsSwitch) error {
			for _, table := range []string{"Bridge", "Port", "Interface"} {
				var all []any
				if err := s.find(table, &all); err != nil {
					return err
				}
				count += len(all)
			}
			return nil
		})
		return count
	}
	empty := rows()
	f.create(t, f.newPod(t, 0))
	one := rows()
	if one != empty+2 {
		t.Errorf("a pod has %d rows", one-empty)
	}
	again := f.newPod(t, 1)
	again.HostIfName = f.pods[0].HostIfName
	if _, err := f.mode.Create(f.network, again); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error is %v", err)
	}
	routed := f.newPod(t, 1)
	withHandle(t, routed.Namespace, func(in side) error {
		lo, err := in.link("lo")
		if err != nil {
			return err
		}
		return in.addRoute(lo, route{dst: netip.MustParsePrefix("0.0.0.0/0")})
	})
	if _, err := f.mode.Create(f.network, routed); err == nil {
		t.Error("a pod with a default route is no error")
	}
	if got := rows(); got != one {
		t.Errorf("a failure left %d rows", got-one)
	}
	if err := nl.DeleteNamespace(f.pods[0].Namespace.Name()); err != nil {
		t.Fatal(err)
	}
	f.pods[0].Namespace = nil
	if err := f.mode.Delete(f.network, f.pods[0]); err != nil {
		t.Fatal(err)
	}
	if got := rows(); got != empty {
		t.Errorf("a pod that is gone left %d rows", got-empty)
	}
}

// testOVSSparesOthers leaves alone what others have in the database.
func testOVSSparesOthers(t *testing.T, f *fixture, _ string) {
	pod := f.newPod(t, 0)
	withSwitch(t, f.network, func(s ovsSwitch) error {
		bridge, err := s.bridge(f.network.bridge())
		if err != nil {
			return err
		}
		if err := s.addPort(bridge, ovsdbRow{"name": pod.HostIfName, "type": "internal"}); err != nil {
			return err
		}
		var errs []error
		for _, table := range []string{"Bridge", "Port"} {
			_, err := s.transact(ovsdbOp{
				"op": "update", "table": table, "where": where(), "row": map[string]any{"external_ids": ovsdbMap{}},
			})
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	for what, err := range map[string]error{
		"Delete": f.mode.Delete(f.network, pod), "Teardown": f.mode.Teardown(f.network),
	} {
		if err == nil || !strings.Contains(err.Error(), "not ours") {
			t.Errorf("%s says %v", what, err)
		}
	}
	findDevice(t, f.network.Host, f.network.bridge())
	// A bridge of someone else's is one to plug pods into.
	if err := f.mode.Setup(f.network); err != nil {
		t.Error(err)
	}
}

// testOVSOffload has Check notice offloads that the user-space datapath can't
// deal with.
func testOVSOffload(t *testing.T, f *fixture, datapath string) {
	if datapath != OVSUserSpace || !f.mode.HostSide() {
		return
	}
	f.create(t, f.newPod(t, 0))
	err := f.pods[0].Namespace.Do(func() error {
		handle, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer handle.Close()
		return handle.Change("eth0", map[string]bool{"tx-checksum-ip-generic": true})
	})
	if err != nil {
		t.Fatal(err)
	}
	wantDeviation(t, f.mode.Check(f.network, f.pods[0]), "tx-checksum")
}

// testOVSAtOnce plugs in many pods at once.
func testOVSAtOnce(t *testing.T, f *fixture, _ string) {
	const count = 4
	for i := range count {
		f.pods = append(f.pods, f.newPod(t, i))
	}
	all := func(do func(pod Pod) error) {
		t.Helper()
		errs := make(chan error, count)
		for _, pod := range f.pods {
			go func() { errs <- do(pod) }()
		}
		for range count {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	}
	all(func(pod Pod) error { _, err := f.mode.Create(f.network, pod); return err })
	all(func(pod Pod) error { return f.mode.Check(f.network, pod) })
	// In the user-space datapath, ovs-vswitchd passes no packets while it looks for all
	// the devices that have been moved. In an emulated guest that takes seconds.
	server := testkit.Echo(t, f.pods[count-1].Namespace, "tcp", netip.AddrPortFrom(f.pods[count-1].Addresses[0], 0).String())
	testkit.Eventually(t, time.Minute, func() error {
		_, err := testkit.RoundTrip(t, f.pods[0].Namespace, "tcp", server.String(), []byte("hello"))
		return err
	})
	all(func(pod Pod) error { return f.mode.Delete(f.network, pod) })
}

// testOVSRepaired has Setup give a bridge back its ways.
func testOVSRepaired(t *testing.T, f *fixture, _ string) {
	f.create(t, f.newPod(t, 0))
	inOVS(func(s ovsSwitch) error {
		return s.apply(ovsdbOp{"op": "update", "table": "Bridge", "where": where(), "row": ovsdbRow{"fail_mode": "secure"}})
	})(t, f)
	wantDeviation(t, f.mode.Check(f.network, f.pods[0]), "fail_mode secure")
	if err := f.mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	if err := f.mode.Check(f.network, f.pods[0]); err != nil {
		t.Error(err)
	}
}

// testOVSBridgeAnew adds a bridge anew whose device has gone, but not while
// another has its name.
func testOVSBridgeAnew(t *testing.T, f *fixture, datapath string) {
	if datapath != OVSUserSpace {
		return // the kernel does not let anyone delete it
	}
	inHost(DefaultBridge, unlink)(t, f)
	addBridge(t, f.network.Host, DefaultBridge)
	if err := f.mode.Setup(f.network); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "not the bridge of Open vSwitch") {
		t.Errorf("error is %v", err)
	}
	inHost(DefaultBridge, unlink)(t, f)
	if err := f.mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	if err := f.mode.Check(f.network, f.pods[0]); err != nil {
		t.Error(err)
	}
	echoOnce(t, f)
}

func wantDeviation(t *testing.T, err error, says string) {
	t.Helper()
	var deviation *DeviationError
	if !errors.As(err, &deviation) || !strings.Contains(err.Error(), says) {
		t.Errorf("Check says %v, wanted: %s", err, says)
	}
}
