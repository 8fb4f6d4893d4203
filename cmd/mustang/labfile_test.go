// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// filePlaces is the number of namespaces of the lab that startLab builds.
const filePlaces = 8

// startLab starts to build a lab of a file, with switches, relays and datapaths.
func startLab(t *testing.T, name, state string) *exec.Cmd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lab.yaml")
	text := fmt.Sprintf(`
name: %s
hosts:
  host-a: {datapath: ebpf, pods: {a: {link: tap}, b: {link: macvlan}, c: {link: ovs-veth}}}
  host-b: {datapath: ebpf, pods: {d: {link: bridge}, e: }}
wires: [{endpoints: [host-a, host-b], rate: 1gbit}]
services: [{name: web, address: 10.96.0.100:80, backends: [a:80]}]
`, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("mustang", "lab", "up", "-f", path)
	cmd.Env = append(os.Environ(), envStateDir+"="+state)
	cmd.Stderr = new(bytes.Buffer)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// TestLabFileInterrupted ends the building of a lab of a file at each of its places, by SIGKILL and by Ctrl-C. After the next
// command nothing is left.
func TestLabFileInterrupted(t *testing.T) {
	testkit.RequireRoot(t)
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGINT} {
		for places := 1; places <= filePlaces; places += 1 + int(signal)%3 {
			t.Run(fmt.Sprintf("%v at %d places", signal, places), func(t *testing.T) {
				t.Parallel()
				state := filepath.Join(t.TempDir(), "state")
				name := fmt.Sprintf("file-%d-%d-%d", os.Getpid(), signal, places)
				prefix := "mst-" + name + "."
				cmd := startLab(t, name, state)
				testkit.Eventually(t, time.Minute, func() error {
					names, err := netns.List(prefix)
					if err == nil && len(names) < places {
						err = fmt.Errorf("%d places, want %d: %s", len(names), places, cmd.Stderr)
					}
					return err
				})
				if err := cmd.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err == nil {
					t.Fatal("the lab was up before the signal: the test shows nothing")
				}
				if signal == unix.SIGKILL && len(remains(t, prefix, state)) == 0 {
					t.Fatal("nothing is left to remove: the test shows nothing")
				}
				if code, _, stderr := command(t, map[string]string{envStateDir: state}, "lab", "ls"); code != exitDone {
					t.Fatalf("lab ls: exit code %d: %s", code, stderr)
				}
				if left := remains(t, prefix, state); len(left) > 0 {
					t.Errorf("left after the next command: %q", left)
				}
			})
		}
	}
}
