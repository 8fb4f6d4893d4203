// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"

	"mustang/internal/nl"
)

// setupRequest is the environment variable that makes TestSetupProcess set a
// network up: the mode, and the path of the host's namespace.
const setupRequest = "PODLINK_TEST_SETUP"

// TestSetupAtOnce has a hundred goroutines and some processes set one network up,
// and plugs a pod in.
func TestSetupAtOnce(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		if mode.Needs() == NeedsOpenVSwitch {
			return // its database has no lock that two Setups would share
		}
		f := newHost(t, mode)
		var group sync.WaitGroup
		for i := range 100 {
			group.Go(func() {
				if i%25 == 0 {
					setupElsewhere(t, f)
					return
				}
				if err := mode.Setup(f.network); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		f.create(t, f.newPod(t, 0))
		if err := mode.Check(f.network, f.pods[0]); err != nil {
			t.Error(err)
		}
		echoToHost(t, f)
	})
}

// setupElsewhere runs TestSetupProcess in a process of its own.
func setupElsewhere(t *testing.T, f *fixture) {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestSetupProcess$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", setupRequest, f.mode.Name(), f.network.Host.Path()))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSetupProcess is a test only for TestSetupAtOnce.
func TestSetupProcess(t *testing.T) {
	var name, path string
	if n, _ := fmt.Sscan(os.Getenv(setupRequest), &name, &path); n != 2 {
		return
	}
	mode, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	host, err := nl.OpenNamespace(path)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	err = mode.Setup(Network{
		Host: host, Uplink: uplinkName,
		Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.10.1/24"), netip.MustParsePrefix("fd00:10::1/64")},
	})
	if err != nil {
		t.Fatal(err)
	}
}
