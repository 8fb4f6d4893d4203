// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/bench/suites"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestPeer measures the rows from this machine, with a peer over ssh and in a namespace.
func TestPeer(t *testing.T) {
	p := newPeerBench(t)
	for name, args := range map[string][]string{
		"ssh":          {"--peer", p.ssh + " root@10.0.0.1"},
		"ssh, program": {"--peer", p.ssh + ` "root@10.0.0.1"`, "--peer-program", p.program, "--peer-address", "10.0.0.1"},
		"nsenter":      {"--peer", "nsenter --net='" + p.peer.Path() + "' --", "--peer-address", "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, row := range p.finish(t, p.start(t, append(args, "--rounds", "3")...)).Rows {
				if local := strings.HasPrefix(row.ID, "host"); local != (row.Status == result.StatusOK) ||
					!local && (row.Status != result.StatusSkipped || !strings.Contains(row.Reason, "--uplink-addresses")) {
					t.Errorf("%s: %s %s", row.ID, row.Status, row.Reason)
				}
				testkit.Check(t, row.Status != result.StatusOK || strings.HasPrefix(row.Evidence.Server.Local, "10.0.0.1:"),
					"%s: the server was reached at %s", row.ID, row.Evidence.Server.Local)
			}
		})
	}
}

// TestPeerFails runs bench with peers that do not serve, and with addresses of the uplink that it must refuse:
// it prints the reason in one line, and leaves nothing.
func TestPeerFails(t *testing.T) {
	p := newPeerBench(t)
	uplink := "--uplink uplink --uplink-addresses "
	for _, test := range []struct {
		shell, args string
		code        int
		want        string // in the error
	}{
		{p.ssh + " -p 1 root@10.0.0.1", "", exitFailed, "Connection refused"},
		{strings.Replace(p.ssh, "/user", "/stranger", 1) + " root@10.0.0.1", "", exitFailed, "Permission denied"},
		{p.ssh + " root@10.0.0.1", "--peer-program no-such-program", exitFailed, "no-such-program"},
		{p.ssh + " root@10.0.0.1", "--peer-program echo", exitFailed, `invalid message "agent-traffic `},
		{p.ssh + " root@10.0.0.1", "--peer-program true", exitFailed, "load agent of the peer: ended"},
		{p.ssh + " root@10.0.0.1 exec 2>&1; echo ", "", exitFailed, "invalid message"},
		{p.ssh + " root@10.0.0.1", "--peer-address 10.0.0.9", exitFailed, "the peer does not have this address"},
		{"sh -c 'echo too old >&2; exit 3'", "--peer-address 10.0.0.1", exitFailed, "exit status 3): too old"},
		{"ssh root@10.0.0.1", uplink + "10.0.0.50/24", exitMisuse, `"10.0.0.50/24"`},
		{"ssh root@10.0.0.1", uplink + "10.0.0.50/24,10.0.0.50/24", exitMisuse, "want two addresses"},
		{"ssh root@10.0.0.1", uplink + "10.0.0.50/24,10.0.1.51/24", exitMisuse, "10.0.1.51/24"},
		{"ssh root@10.0.0.1", uplink + "10.0.1.50/24,10.0.1.51/24", exitMisuse, "10.0.0.1"},
		{"ssh root@10.0.0.1", uplink + "10.0.0.50/25,10.0.0.51/25", exitMisuse, "10.0.0.0/25"},
		{"ssh root@10.0.0.1", uplink + "10.0.0.2/24,10.0.0.51/24", exitMisuse, "10.0.0.2/24"},
		{"ssh root@10.0.0.1", uplink + "10.0.0.50/24,10.0.0.1/24", exitMisuse, "the peer's"},
	} {
		t.Run(test.shell+" "+test.args, func(t *testing.T) {
			s := p.start(t, append([]string{"--peer", test.shell}, strings.Fields(test.args)...)...)
			_ = s.cmd.Wait()
			text := s.stderr.String()
			code := s.cmd.ProcessState.ExitCode()
			testkit.Check(t, code == test.code && strings.Count(text, "\n") == 1 && strings.Contains(text, test.want),
				"exit code %d, want %d; stderr %q, want one line with %q", code, test.code, text, test.want)
			_, err := os.Stat(s.out)
			testkit.Check(t, test.code == exitFailed || err != nil, "%s was written", s.out)
			p.checkClean(t, s)
		})
	}
}

// TestPeerUplink measures from pods on the network of a device as well, which is not changed.
func TestPeerUplink(t *testing.T) {
	p := newPeerBench(t)
	before := p.snapshot(t)
	file := p.finish(t, p.startSSH(t, "--rounds 3 "+uplinkArgs))
	p.unchanged(t, before)
	if !slices.ContainsFunc(file.Run.Notes, func(note string) bool {
		return strings.Contains(note, "macvlan device on uplink")
	}) {
		t.Errorf("no note says how pods get there: %q", file.Run.Notes)
	}
	suites := testkit.Must(suites.Lookup("latency"))(t)
	// The devices on the way without the machine's uplink, the client's address as the server sees it, and the
	// program that ran.
	wants := map[string]struct{ devices, peer, program string }{
		"host":            {"", "10.0.0.2", ""},
		"host/again":      {"", "10.0.0.2", ""},
		"veth-bridge-nat": {"pod-b/eth0 host-b/veth-pod-b host-b/mst0 host-b/uplink", "10.0.0.50", ""},
		"veth":            {"pod-b/eth0 host-b/veth-pod-b host-b/uplink", "10.0.0.51", ""},
		"veth+ebpf":       {"pod-b/eth0 host-b/veth-pod-b host-b/uplink", "10.0.0.51", "from_pod"},
		"macvlan":         {"pod-b/eth0", "10.0.0.51", ""},
		"ipvlan-l2":       {"pod-b/eth0 host-b/uplink", "10.0.0.51", ""},
	}
	testkit.Check(t, len(file.Rows) == len(wants), "%d rows, want %d", len(file.Rows), len(wants))
	unsupported := probed(suites[0])
	for _, row := range file.Rows {
		if err := unsupported[row.ID]; err != nil {
			testkit.Check(t, row.Status == result.StatusSkipped && row.Reason == err.Error(),
				"%s: %s %s, want it skipped: %v", row.ID, row.Status, row.Reason, err)
			continue
		}
		want := wants[row.ID]
		if row.Status != result.StatusOK || len(row.Samples) != file.Run.Rounds {
			t.Errorf("%s: %s %s, %d samples", row.ID, row.Status, row.Reason, len(row.Samples))
			continue
		}
		testkit.Check(t, strings.HasPrefix(row.Evidence.Server.Peer, want.peer+":"),
			"%s: the server's peer is %s, want %s", row.ID, row.Evidence.Server.Peer, want.peer)
		if want.program != "" && row.Evidence.ProgramRuns[want.program] == 0 || want.program == "" &&
			len(row.Evidence.ProgramRuns) > 0 {
			t.Errorf("%s: programs ran: %v", row.ID, row.Evidence.ProgramRuns)
		}
		for _, device := range append(strings.Fields(want.devices), "this machine/uplink") {
			if !slices.ContainsFunc(row.Evidence.Devices, func(d result.DeviceCount) bool {
				return d.Host+"/"+d.Name == device && d.RxPackets >= 3 && d.TxPackets >= 3
			}) {
				t.Errorf("%s: no packets at %s: %+v", row.ID, device, row.Evidence.Devices)
			}
		}
	}
}

// TestPeerBenchEnds ends a bench with an uplink with Ctrl-C, and with kill -9: the server on
// the peer ends, and the next command removes the labs.
func TestPeerBenchEnds(t *testing.T) {
	p := newPeerBench(t)
	before := p.snapshot(t)
	for _, signal := range []unix.Signal{unix.SIGINT, unix.SIGKILL} {
		s := p.startSSH(t, "--rounds 10000 "+uplinkArgs)
		s.awaitRows(t, 6)
		testkit.Succeed(t, s.cmd.Process.Signal(signal))
		_ = s.cmd.Wait()
		if signal == unix.SIGKILL {
			testkit.Require(t, len(s.remains(t)) != 0, "a killed bench left nothing: the test shows nothing")
			code, _, stderr := command(t, map[string]string{envStateDir: s.state}, "version")
			testkit.Require(t, code == exitDone, "version: exit code %d: %s", code, stderr)
		} else if file, err := readResults(s.out); err != nil || !file.Run.Interrupted {
			t.Errorf("interrupted %t, %v: %s", file.Run.Interrupted, err, s.stderr)
		}
		p.checkClean(t, s)
		p.unchanged(t, before)
	}
	for _, row := range p.finish(t, p.startSSH(t, "--rounds 3 --only macvlan "+uplinkArgs)).Rows {
		testkit.Check(t, row.Status == result.StatusOK, "%s afterwards: %s %s", row.ID, row.Status, row.Reason)
	}
}

// TestSplitWords splits command lines as a shell does.
func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		"ssh root@10.0.0.1":          {"ssh", "root@10.0.0.1"},
		"  ssh\t-p  22\n":            {"ssh", "-p", "22"},
		`a 'b c' "d e" f\ g`:         {"a", "b c", "d e", "f g"},
		`'a'"b"c '' ""`:              {"abc", "", ""},
		`"\"\\\$\x" '\' \'`:          {`"\$\x`, `\`, `'`},
		"ssh h $HOME | tee * > file": {"ssh", "h", "$HOME", "|", "tee", "*", ">", "file"},
	} {
		got, err := splitWords(text)
		testkit.Check(t, err == nil && slices.Equal(got, want), "%q becomes %q, %v; want %q", text, got, err, want)
	}
}
