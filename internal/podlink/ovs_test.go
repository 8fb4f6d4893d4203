// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// startOpenVSwitch starts an Open vSwitch for a host that ends with the test, and
// returns the socket of its database.
func startOpenVSwitch(t *testing.T, host *nl.Namespace) string {
	t.Helper()
	return runOpenVSwitch(t, host, StartOpenVSwitch).Socket()
}

// starter is a way to start an Open vSwitch.
type starter func(host *nl.Namespace, dir string) (*OpenVSwitch, error)

func runOpenVSwitch(t *testing.T, host *nl.Namespace, start starter) *OpenVSwitch {
	t.Helper()
	s, err := start(host, newOVSDir(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, err := os.ReadFile(s.switching.log); t.Failed() {
			t.Logf("log of ovs-vswitchd: %v\n%s", err, log)
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newOVSDir is a directory that is not there yet. It is not the test's own, whose
// path is too long for a socket.
func newOVSDir(t *testing.T) string {
	t.Helper()
	if err := FindOpenVSwitch(); err != nil {
		testkit.Skip(t, err.Error())
	}
	dir, err := os.MkdirTemp("", "mst-ovs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run")
}

// ovsModes are the modes of Open vSwitch.
func ovsModes() []Mode { return []Mode{newOVSVeth(), newOVSInternal()} }

// sharedHost is a mode of Open vSwitch whose hosts are one and the same, one test
// after the other. Starting an Open vSwitch takes longer than most tests. A bridge
// that no test uses keeps its datapath, which takes long to make as well.
type sharedHost struct {
	Mode
	network Network
}

// sharedBridge is the one that no test uses.
const sharedBridge = "shared"

// shareHost has all hosts that newHost makes for a mode of Open vSwitch be one.
func shareHost(t *testing.T, mode Mode) Mode {
	t.Helper()
	if mode.Needs() != NeedsOpenVSwitch {
		return mode
	}
	f := newHost(t, mode)
	network := f.network
	network.Bridge = sharedBridge
	network.Gateways = nil
	withSwitch(t, network, func(s ovsSwitch) error {
		datapath, err := s.bestDatapath(network.Host)
		if err != nil {
			return err
		}
		return s.addBridge(sharedBridge, datapath, "02:00:00:00:00:01", DefaultMTU)
	})
	return sharedHost{mode, f.network}
}

// fixture is a fixture on the shared host, which is as new again when the test is
// over.
func (h sharedHost) fixture(t *testing.T) *fixture {
	t.Helper()
	before := describe(t, h.network.Host)
	t.Cleanup(func() {
		withSwitch(t, h.network, func(s ovsSwitch) error {
			var bridges []ovsBridge
			err := s.find("Bridge", &bridges)
			for _, bridge := range bridges {
				if bridge.Name != sharedBridge && err == nil {
					err = s.deleteBridge(bridge)
				}
			}
			return err
		})
		withHandle(t, h.network.Host, func(host side) error {
			links, err := host.links()
			for _, link := range links {
				switch name := link.Attrs().Name; name {
				case "lo", uplinkName, "wire", sharedBridge, "ovs-system", "ovs-netdev":
				default:
					if err == nil {
						err = host.LinkDel(link)
					}
					if errors.Is(err, unix.ENODEV) {
						err = nil // Open vSwitch was faster
					}
				}
			}
			return err
		})
		for _, s := range forwarding() {
			if err := h.network.Host.SetSysctl(s.key, "0"); err != nil {
				t.Error(err)
			}
		}
		if got := describe(t, h.network.Host); got != before {
			t.Errorf("the shared host is not as before:\n%s", difference(before, got))
		}
	})
	network := h.network
	network.Gateways = slices.Clone(network.Gateways)
	return &fixture{mode: h.Mode, network: network, large: true, stopRelay: map[string]func(){}}
}

// withSwitch runs fn with a connection to the database of a network's Open
// vSwitch.
func withSwitch(t *testing.T, network Network, fn func(s ovsSwitch) error) {
	t.Helper()
	s, err := openSwitch(network)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := fn(s); err != nil {
		t.Fatal(err)
	}
}
