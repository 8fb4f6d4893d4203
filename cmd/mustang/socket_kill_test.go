// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// sockets is a control group and a network namespace whose sockets are translated and not, by the program.
type sockets struct {
	t      *testing.T
	root   string
	cgroup string
	netns  string
}

func (s sockets) args(verb string) []string {
	return []string{"socket", verb, "--cgroup", s.cgroup, "--netns", s.netns}
}

// run runs a command to its end. What a killed one has detached is not there any more.
func (s sockets) run(args ...string) {
	s.t.Helper()
	code, _, stderr := command(s.t, map[string]string{cli.EnvBPFRoot: s.root}, args...)
	if code != exitDone && !strings.Contains(stderr, "does not exist") && !strings.Contains(stderr, "attached to nothing") {
		s.t.Fatalf("%q: exit code %d: %s", args, code, stderr)
	}
}

// state is what is pinned, and what the program lists.
func (s sockets) state() string {
	s.t.Helper()
	var text strings.Builder
	if err := filepath.WalkDir(s.root, func(path string, _ fs.DirEntry, err error) error {
		text.WriteString(path + "\n")
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	code, stdout, stderr := command(s.t, map[string]string{cli.EnvBPFRoot: s.root}, "socket", "ls", "-o", "json")
	if code != exitDone {
		s.t.Fatalf("socket ls: exit code %d: %s", code, stderr)
	}
	return text.String() + stdout
}

// check returns an error unless the namespace is registered and each pinned link is attached to the control group.
func (s sockets) check() error {
	d, err := datapath.OpenExisting(datapath.Options{Root: s.root})
	if err != nil {
		return err
	}
	defer d.Close()
	return cli.WithNamespace(s.netns, func(ns *netns.Namespace) error { return d.Sockets().Check(service.CLI, ns, s.cgroup) })
}

// TestSocketKilledAnywhere kills socket attach and socket detach at random moments. The same command again leaves what one
// that is not killed leaves.
func TestSocketKilledAnywhere(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	s := sockets{t, testkit.BPFFS(t) + "/root", testkit.Cgroup(t), filepath.Base(testkit.Namespace(t, "host").Name())}
	want, takes := map[string]string{}, map[string]time.Duration{}
	for _, verb := range []string{"attach", "detach"} {
		begin := time.Now()
		if out, err := s.command(verb).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", verb, err, out)
		}
		takes[verb], want[verb] = time.Since(begin), s.state()
	}
	if want["attach"] == want["detach"] {
		t.Fatal("attach and detach leave the same")
	}
	killed := 0
	for round := range testkit.Repeats(40, 400) {
		verb := []string{"attach", "detach"}[round%2]
		switch round % 4 {
		case 0:
			s.run("reset") // so that attach makes the maps
		case 1, 3:
			s.run(s.args("attach")...)
		}
		cmd := s.command(verb)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		delay := rand.N(takes[verb])
		time.Sleep(delay)
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() == -1 {
			killed++
		}
		s.run(s.args(verb)...)
		if got := s.state(); got != want[verb] {
			t.Fatalf("%s, killed after %s and run again, leaves\n%s\nwant\n%s", verb, delay, got, want[verb])
		}
		if err := s.check(); (err == nil) != (verb == "attach") {
			t.Fatalf("%s, killed after %s and run again: %v", verb, delay, err)
		}
	}
	if killed == 0 {
		t.Error("no command was killed: the test shows nothing")
	}
	t.Logf("%d commands were killed", killed)
}

func (s sockets) command(verb string) *exec.Cmd {
	cmd := exec.Command("mustang", s.args(verb)...)
	cmd.Env = append(os.Environ(), cli.EnvBPFRoot+"="+s.root)
	return cmd
}
