// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// peerBench is two machines: a peer at 10.0.0.1 with an sshd, and one that measures, at 10.0.0.2 on its device uplink.
type peerBench struct {
	machine, peer *netns.Namespace
	program       string
	ssh           string // the command line of a shell on the peer, but for user and host
}

// uplinkArgs share the device of the machine that measures.
const uplinkArgs = "--uplink uplink --uplink-addresses 10.0.0.50/24,10.0.0.51/24"

func newPeerBench(t *testing.T) peerBench {
	t.Helper()
	testkit.RequireRoot(t)
	l := testkit.Must(lab.Store{Dir: filepath.Join(t.TempDir(), "state")}.Up(t.Context(), lab.Options{
		Name: "peers-" + strings.ToLower(filepath.Base(t.TempDir())), Topology: lab.TopologyTwoHosts, Link: lab.LinkHost,
	}))(t)
	t.Cleanup(func() { testkit.Succeed(t, l.Close()) })
	p := peerBench{
		machine: testkit.Must(l.Namespace(lab.HostB))(t), peer: testkit.Must(l.Namespace(lab.HostA))(t),
		program: testkit.Must(exec.LookPath("mustang"))(t),
	}
	p.ssh = startSSHD(t, p.peer, filepath.Dir(p.program))
	return p
}

// startSSHD starts sshd at 10.0.0.1 in a namespace, with keys of its own and a directory in
// the PATH of its users. It returns the command line of its client.
func startSSHD(t *testing.T, ns *netns.Namespace, path string) string {
	t.Helper()
	testkit.RequireTool(t, "/usr/sbin/sshd")
	dir := t.TempDir()
	for _, key := range []string{"host", "user", "stranger"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
			filepath.Join(dir, key)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	public := testkit.Must(os.ReadFile(filepath.Join(dir, "host.pub")))(t)
	for name, text := range map[string]string{
		"known_hosts": "10.0.0.1 " + string(public),
		"sshd_config": strings.ReplaceAll(`ListenAddress 10.0.0.1
HostKey DIR/host
AuthorizedKeysFile DIR/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
`, "DIR", dir) + "SetEnv PATH=" + path + ":/usr/bin:/bin\n",
	} {
		testkit.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // of Debian's init scripts
		t.Fatal(err)
	}
	var stderr output
	cmd := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", filepath.Join(dir, "sshd_config"))
	cmd.Stderr = &stderr
	testkit.Succeed(t, ns.Start(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testkit.Eventually(t, 30*time.Second, func() error {
		if !strings.Contains(stderr.String(), "Server listening on 10.0.0.1") {
			return fmt.Errorf("sshd says %q", stderr.String())
		}
		return nil
	})
	return strings.ReplaceAll(
		"ssh -F none -i DIR/user -o IdentitiesOnly=yes -o BatchMode=yes -o 'UserKnownHostsFile=DIR/known_hosts'", "DIR", dir)
}

func (p peerBench) start(t *testing.T, args ...string) started {
	t.Helper()
	dir := t.TempDir()
	s := started{out: dir + "/out", state: dir + "/state", stderr: new(bytes.Buffer)}
	s.cmd = exec.Command(p.program, append([]string{"bench", "latency", "--duration", "20ms", "--out", s.out}, args...)...)
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), envStateDir+"="+s.state), s.stderr
	testkit.Succeed(t, p.machine.Start(s.cmd))
	t.Cleanup(func() { _, _ = s.cmd.Process.Kill(), s.cmd.Wait() })
	return s
}

func (p peerBench) startSSH(t *testing.T, args string) started {
	t.Helper()
	return p.start(t, append([]string{"--peer", p.ssh + " root@10.0.0.1"}, strings.Fields(args)...)...)
}

// finish waits until a bench ends well and has left nothing, and returns its result.
func (p peerBench) finish(t *testing.T, s started) result.File {
	t.Helper()
	err := s.cmd.Wait()
	testkit.Require(t, err == nil, "bench --peer: %v\n%s", err, s.stderr)
	p.checkClean(t, s)
	return testkit.Must(readResults(s.out))(t)
}

// checkClean checks that a bench that has ended left nothing, on the peer neither.
func (p peerBench) checkClean(t *testing.T, s started) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		if left := s.remains(t); len(left) > 0 { // ssh ends a moment after a bench that was killed
			return fmt.Errorf("left: %q", left)
		}
		if left := p.agents(t); len(left) > 0 {
			return fmt.Errorf("processes left on the peer: %v", left)
		}
		return nil
	})
}

func (p peerBench) agents(t *testing.T) []int {
	t.Helper()
	inode := testkit.Must(p.peer.Inode())(t)
	return agents(t, func(proc string) bool {
		ns, _ := os.Readlink(proc + "/ns/net")
		return ns == fmt.Sprintf("net:[%d]", inode)
	})
}

// snapshot returns the state of the machine's namespace once no IPv6 address is tentative.
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

// unchanged waits until the machine's namespace is as before: the kernel deletes namespaces and their contents a moment
// later.
func (p peerBench) unchanged(t *testing.T, before string) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, func() error {
		if now := testkit.Snapshot(t, p.machine); now != before {
			return fmt.Errorf("the machine's namespace was\n%s\nand is\n%s", before, now)
		}
		return nil
	})
}
