// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// stopSignals are those that ask a program to end.
var stopSignals = []os.Signal{unix.SIGINT, unix.SIGTERM}

// waitsFor reports whether a process waits for a file's lock, by /proc/locks.
func waitsFor(locks string, pid int) bool {
	for line := range strings.Lines(locks) {
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[1] == "->" && fields[2] == "FLOCK" && fields[5] == strconv.Itoa(pid) {
			return true
		}
	}
	return false
}

// TestSignalled has verbs be asked to end that take milliseconds, but for a lock: they
// do their work.
func TestSignalled(t *testing.T) {
	f := newFixture(t)
	p := f.pod("a", network("net", "veth", ""))
	for _, verb := range []string{"ADD", "DEL"} {
		dir := filepath.Join(f.plugin.StateDir, "net")
		unlock, err := lockDir(dir)
		f.must(err)
		r := f.start(call{verb: verb, env: p.environment(), config: p.request.Config})
		waiting := func() error {
			if locks, err := os.ReadFile("/proc/locks"); err != nil || !waitsFor(string(locks), r.cmd.Process.Pid) {
				return fmt.Errorf("%s does not wait for %s: %v", verb, dir, err)
			}
			return nil
		}
		testkit.Eventually(t, 10*time.Second, waiting)
		for _, signal := range stopSignals {
			f.must(r.cmd.Process.Signal(signal))
		}
		time.Sleep(50 * time.Millisecond)
		if err := waiting(); err != nil {
			t.Error(err)
		}
		unlock()
		f.worked(r.wait())
		if has, err := p.HasDevice("eth0"); err != nil || has != (verb == "ADD") {
			t.Errorf("after %s there is a device: %t, %v", verb, has, err)
		}
	}
}

// TestSignalledDelegate has ADD be asked to end while another plugin takes its time: it
// does not wait for that, and undoes what it has done.
func TestSignalledDelegate(t *testing.T) {
	for _, signal := range stopSignals {
		t.Run(fmt.Sprint(signal), func(t *testing.T) {
			f := newFixture(t)
			dir, path, p := f.delegated()
			before := f.left()
			f.must(os.WriteFile(path+".hang", []byte("ADD"), 0o600))
			r := f.start(call{verb: "ADD", env: p.environment(dir), config: p.request.Config})
			testkit.Eventually(t, 10*time.Second, func() error {
				_, err := os.Stat(path + ".log")
				return err
			})
			f.must(r.cmd.Process.Signal(signal))
			if a := r.wait(); a.exit == 0 {
				t.Errorf("ADD succeeded: %s", a.stdout)
			}
			if got := f.called(path); !slices.Equal(got, []string{"ADD a eth0", "DEL a eth0"}) {
				t.Errorf("calls %q", got)
			}
			f.same(before, "an interrupted ADD")
		})
	}
}
