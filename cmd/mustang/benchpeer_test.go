// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/bench"
	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// peerBench is two machines: one that serves, at 10.0.0.1, and one that measures,
// at 10.0.0.2 on its device uplink.
type peerBench struct {
	machine *nl.Namespace
	program string
	token   string
}

// uplinkArgs share the device of the machine that measures.
const uplinkArgs = "--uplink uplink --uplink-addresses 10.0.0.50/24,10.0.0.51/24"

func newPeerBench(t *testing.T) peerBench {
	t.Helper()
	testkit.RequireRoot(t)
	l, err := lab.Store{Dir: filepath.Join(t.TempDir(), "state")}.Up(t.Context(), lab.Options{
		Name: "peers-" + strings.ToLower(filepath.Base(t.TempDir())), Topology: lab.TopologyTwoHosts, Link: lab.LinkHost,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	p := peerBench{token: filepath.Join(t.TempDir(), "token")}
	other, err := l.Namespace(lab.HostA)
	if err != nil {
		t.Fatal(err)
	}
	if p.machine, err = l.Namespace(lab.HostB); err != nil {
		t.Fatal(err)
	}
	p.program = startServe(t, other, "--listen 10.0.0.1 --write-token "+p.token).cmd.Path
	return p
}

// start starts a bench with the peer.
func (p peerBench) start(t *testing.T, args string) started {
	t.Helper()
	s := started{out: filepath.Join(t.TempDir(), "out"), state: filepath.Join(t.TempDir(), "state"), stderr: new(bytes.Buffer)}
	s.cmd = exec.Command(p.program, append([]string{"bench", "latency", "--peer", "10.0.0.1", "--token-file", p.token,
		"--duration", "20ms", "--out", s.out}, strings.Fields(args)...)...)
	s.cmd.Env = append(os.Environ(), envStateDir+"="+s.state)
	s.cmd.Stderr = s.stderr
	if err := p.machine.Start(s.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	return s
}

// measure runs a bench with the peer to its end.
func (p peerBench) measure(t *testing.T, args string) result.File {
	t.Helper()
	s := p.start(t, "--rounds 3 "+args)
	if err := s.cmd.Wait(); err != nil {
		t.Fatalf("bench --peer %s: %v\n%s", args, err, s.stderr)
	}
	if left := s.remains(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	file, err := result.Read(filepath.Join(s.out, bench.ResultsName))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// snapshot is the machine's namespace, once its IPv6 addresses are found to be
// nobody else's.
func (p peerBench) snapshot(t *testing.T) (text string) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, func() error {
		if text = testkit.Snapshot(t, p.machine); strings.Contains(text, "tentative") {
			return errors.New("an address is tentative")
		}
		return nil
	})
	return text
}

// unchanged waits until the machine's namespace is as it was: the kernel deletes
// namespaces, and what is in them, a moment later.
func (p peerBench) unchanged(t *testing.T, before string) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, func() error {
		was, is := strings.Split(before, "\n"), strings.Split(testkit.Snapshot(t, p.machine), "\n")
		for i := range max(len(was), len(is)) {
			if i >= len(was) || i >= len(is) || was[i] != is[i] {
				return fmt.Errorf("the machine's namespace is not as it was: %d lines of %d, then %q", i, len(was), is[min(i, len(is)-1)])
			}
		}
		return nil
	})
}

// TestBenchPeer has one machine serve, and another measure the way to it.
func TestBenchPeer(t *testing.T) {
	p := newPeerBench(t)
	for _, row := range p.measure(t, "").Rows {
		if fromHere := strings.HasPrefix(row.ID, "host"); fromHere != (row.Status == result.StatusOK) ||
			!fromHere && (row.Status != result.StatusSkipped || !strings.Contains(row.Reason, "--uplink-addresses")) {
			t.Errorf("%s: %s %s", row.ID, row.Status, row.Reason)
		}
		if row.Status == result.StatusOK && !strings.HasPrefix(row.Evidence.Server.Local, "10.0.0.1:") {
			t.Errorf("%s: the server was reached at %s", row.ID, row.Evidence.Server.Local)
		}
	}
	if err := os.WriteFile(p.token, []byte("another secret of 24 bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := p.start(t, "")
	err := s.cmd.Wait()
	if text := s.stderr.String(); err == nil || strings.Count(strings.TrimSpace(text), "\n") > 0 || !strings.Contains(text, "token") {
		t.Errorf("with another token: %v, %s", err, text)
	}
}

// TestBenchPeerUplink measures from pods on the network of a device as well, which
// is not changed.
func TestBenchPeerUplink(t *testing.T) {
	p := newPeerBench(t)
	before := p.snapshot(t)
	file := p.measure(t, uplinkArgs)
	p.unchanged(t, before)
	if !slices.ContainsFunc(file.Run.Notes, func(note string) bool { return strings.Contains(note, "macvlan device on uplink") }) {
		t.Errorf("no note says how pods get there: %q", file.Run.Notes)
	}
	suites, err := bench.LookupSuites("latency")
	if err != nil {
		t.Fatal(err)
	}
	// The devices on the way besides the machine's uplink, as whom the server sees the
	// client, and what ran.
	wants := map[string]struct{ devices, peer, program string }{
		"host":            {"", "10.0.0.2", ""},
		"host/again":      {"", "10.0.0.2", ""},
		"veth-bridge-nat": {"pod-b/eth0 host-b/veth-pod-b host-b/mst0 host-b/uplink", "10.0.0.50", ""},
		"veth":            {"pod-b/eth0 host-b/veth-pod-b host-b/uplink", "10.0.0.51", ""},
		"veth+ebpf":       {"pod-b/eth0 host-b/veth-pod-b host-b/uplink", "10.0.0.51", "from_pod"},
		"macvlan":         {"pod-b/eth0", "10.0.0.51", ""},
		"ipvlan-l2":       {"pod-b/eth0 host-b/uplink", "10.0.0.51", ""},
	}
	if len(file.Rows) != len(wants) {
		t.Errorf("%d rows, want %d", len(file.Rows), len(wants))
	}
	for _, row := range file.Rows {
		if missing := suites[0].Missing(row.ID); missing != nil {
			if row.Status != result.StatusSkipped || row.Reason != missing.Error() {
				t.Errorf("%s: %s %s, want it skipped: %v", row.ID, row.Status, row.Reason, missing)
			}
			continue
		}
		want := wants[row.ID]
		if row.Status != result.StatusOK || len(row.Samples) != file.Run.Rounds {
			t.Errorf("%s: %s %s, %d samples", row.ID, row.Status, row.Reason, len(row.Samples))
			continue
		}
		if !strings.HasPrefix(row.Evidence.Server.Peer, want.peer+":") {
			t.Errorf("%s: the server's peer is %s, want %s", row.ID, row.Evidence.Server.Peer, want.peer)
		}
		if want.program != "" && row.Evidence.ProgramRuns[want.program] == 0 || want.program == "" && len(row.Evidence.ProgramRuns) > 0 {
			t.Errorf("%s: programs ran: %v", row.ID, row.Evidence.ProgramRuns)
		}
		for _, device := range append(strings.Fields(want.devices), "this machine/uplink") {
			if !slices.ContainsFunc(row.Evidence.Devices, func(d result.DeviceCount) bool {
				return d.Host+"/"+d.Name == device && d.RxPackets >= 20 && d.TxPackets >= 20
			}) {
				t.Errorf("%s: hardly any packets at %s: %+v", row.ID, device, row.Evidence.Devices)
			}
		}
	}
}

// TestBenchPeerEnded ends a bench with an uplink by Ctrl-C, and by kill -9: then the
// next command clears up. The server serves the next one.
func TestBenchPeerEnded(t *testing.T) {
	p := newPeerBench(t)
	before := p.snapshot(t)
	for _, signal := range []unix.Signal{unix.SIGINT, unix.SIGKILL} {
		s := p.start(t, "--rounds 10000 "+uplinkArgs)
		s.awaitRows(t, 6)
		if err := s.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = s.cmd.Wait()
		if signal == unix.SIGKILL {
			if len(s.remains(t)) == 0 {
				t.Fatal("a killed bench left nothing: the test shows nothing")
			}
			if code, _, stderr := command(t, map[string]string{envStateDir: s.state}, "version"); code != exitDone {
				t.Fatalf("version: exit code %d: %s", code, stderr)
			}
		} else if file, err := result.Read(filepath.Join(s.out, bench.ResultsName)); err != nil || !file.Run.Interrupted {
			t.Errorf("interrupted %t, %v: %s", file.Run.Interrupted, err, s.stderr)
		}
		if left := s.remains(t); len(left) > 0 {
			t.Errorf("left after %v: %q", signal, left)
		}
		p.unchanged(t, before)
	}
	for _, row := range p.measure(t, "--only macvlan "+uplinkArgs).Rows {
		if row.Status != result.StatusOK {
			t.Errorf("%s afterwards: %s %s", row.ID, row.Status, row.Reason)
		}
	}
}

// TestBenchPeerBadInput gives bench uplinks that it must refuse in one line, with
// nothing written.
func TestBenchPeerBadInput(t *testing.T) {
	p := newPeerBench(t)
	for args, culprit := range map[string]string{
		"--uplink uplink": "--uplink-addresses",
		"--uplink-addresses 10.0.0.50/24,10.0.0.51/24":                 "--uplink ",
		"--uplink uplink --uplink-addresses 10.0.0.50/24":              `"10.0.0.50/24"`,
		"--uplink uplink --uplink-addresses 10.0.0.50,10.0.0.51":       `"10.0.0.50,10.0.0.51"`,
		"--uplink uplink --uplink-addresses 10.0.0.50/24,x":            `"10.0.0.50/24,x"`,
		"--uplink uplink --uplink-addresses fd00:1::5/64,fd00:1::6/64": "fd00:1::5/64",
		"--uplink uplink --uplink-addresses 10.0.0.50/24,10.0.0.50/24": "twice",
		"--uplink uplink --uplink-addresses 10.0.0.50/24,10.0.1.51/24": "10.0.1.51/24",
		"--uplink uplink --uplink-addresses 10.0.1.50/24,10.0.1.51/24": "10.0.0.1",
		"--uplink uplink --uplink-addresses 10.0.0.50/25,10.0.0.51/25": "10.0.0.0/25",
		"--uplink uplink --uplink-addresses 10.0.0.2/24,10.0.0.51/24":  "10.0.0.2/24",
		"--uplink uplink --uplink-addresses 10.0.0.50/24,10.0.0.1/24":  "the peer's",
		"--uplink nope --uplink-addresses 10.0.0.50/24,10.0.0.51/24":   `"nope"`,
		"--uplink lo --uplink-addresses 10.0.0.50/24,10.0.0.51/24":     "uplink lo",
	} {
		t.Run(args, func(t *testing.T) {
			s := p.start(t, args)
			_ = s.cmd.Wait()
			text := s.stderr.String()
			if code := s.cmd.ProcessState.ExitCode(); code != exitMisuse || strings.Count(text, "\n") != 1 || !strings.Contains(text, culprit) {
				t.Errorf("exit code %d, want %d; stderr %q, want one line with %q", code, exitMisuse, text, culprit)
			}
			for _, dir := range []string{s.out, s.state + "/labs"} {
				if _, err := os.Stat(dir); err == nil {
					t.Errorf("%s was written", dir)
				}
			}
		})
	}
	env := map[string]string{envStateDir: filepath.Join(t.TempDir(), "state")}
	code, _, stderr := command(t, env, append([]string{"bench", "latency"}, strings.Fields(uplinkArgs)...)...)
	if code != exitMisuse || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "need --peer") {
		t.Errorf("without --peer: exit code %d, %q", code, stderr)
	}
}
