// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bufio"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/worker"
	"mustang/internal/netns"
	"mustang/internal/testkit"
	"mustang/internal/tun"
	"mustang/internal/vm"
)

// dockerStages returns the objects that appear while a docker lab is built, in order.
func dockerStages() []string {
	return []string{"namespace host-b", "file docker.pid", "control group", "namespace container-a", "all"}
}

func reached(t *testing.T, s lab.Store, name, stage string) bool {
	t.Helper()
	kind, what, _ := strings.Cut(stage, " ")
	path := filepath.Join(netns.Directory, "mst-"+name+"."+what)
	switch kind {
	case "control":
		for _, group := range cgroupsOf(t, name) {
			if strings.HasSuffix(group, ".docker") {
				return true
			}
		}
		return false
	case "file":
		path = filepath.Join(s.Dir, "labs", name+".docker", what)
	case "all":
		return false // until the process prints a line
	}
	_, err := os.Stat(path)
	return err == nil
}

// TestDockerKilled kills the process that builds a lab at each stage, and checks that Reap leaves nothing.
func TestDockerKilled(t *testing.T) {
	testkit.NotInGuest(t) // where each start of Docker takes a minute
	s := dockerStore(t)
	before := testkit.RootSnapshot(t)
	for _, stage := range dockerStages() {
		t.Run(stage, func(t *testing.T) {
			name := killedBuild(t, s, stage)
			testkit.Require(t, len(dockerLeftovers(t, s, name)) != 0, "nothing is left to reap: the test shows nothing")
			// A child that the killed process was about to start holds its lock for a moment.
			testkit.Eventually(t, 10*time.Second, func() error {
				testkit.Succeed(t, s.Reap())
				if left := dockerLeftovers(t, s, name); len(left) > 0 {
					return fmt.Errorf("left after Reap: %q", left)
				}
				return nil
			})
		})
	}
	after := testkit.RootSnapshot(t)
	testkit.Check(t, after == before, "left in the root namespace: %s", firstDifference(before, after))
}

// killedBuild starts a process that builds a lab, and kills it when it has come
// to the stage. It returns the lab's name.
func killedBuild(t *testing.T, s lab.Store, stage string) string {
	t.Helper()
	cmd, out := startChild(t, dockerChildVariable+"="+s.Dir, dockerProgramVariable+"="+s.Program)
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		said <- strings.TrimSpace(line)
	}()
	name := fmt.Sprintf("test-%d-1", cmd.Process.Pid)
	for deadline := time.Now().Add(time.Minute); !reached(t, s, name, stage); time.Sleep(time.Millisecond) {
		select {
		case line := <-said:
			testkit.Require(t, line == "ready", "child: %s", line)
			return name
		default:
		}
		testkit.Require(t, !time.Now().After(deadline), "it takes too long")
	}
	return name
}

const (
	dockerChildVariable   = "MUSTANG_TEST_DOCKER_CHILD"
	dockerProgramVariable = "MUSTANG_TEST_DOCKER_PROGRAM"
)

// dockerProcess is the main of processes that tests start: one that builds a lab and is killed, agents, relays,
// guests, and pauses in containers. It reports whether this process is one of them.
func dockerProcess() (code int, ok bool) {
	if dir := os.Getenv(dockerChildVariable); dir != "" {
		return dockerChild(lab.Store{Dir: dir, Program: os.Getenv(dockerProgramVariable)}), true
	}
	if len(os.Args) < 2 {
		return 0, false
	}
	var err error
	switch ctx, args := context.Background(), os.Args[2:]; os.Args[1] {
	case lab.PauseCommand:
		lab.Pause(ctx)
	case load.Command:
		err = worker.Main(ctx, args, os.Stdin, os.Stdout)
	case tun.RelayCommand:
		err = tun.Relay(ctx, args, os.Stdout)
	case lab.GuestCommand:
		err = lab.RunGuest(ctx, args, vm.Options{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

// dockerChild builds a lab, prints a line, and waits to be killed.
func dockerChild(s lab.Store) int {
	l, err := s.Up(context.Background(), options(dockerOptions))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer runtime.KeepAlive(l)
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
	return 0
}

var dockerOptions = lab.Options{Topology: lab.TopologyDocker, Link: "bridge"} // make the docker topology

func dockerStore(t *testing.T) lab.Store {
	t.Helper()
	testkit.RequireRoot(t)
	if err := dockerOptions.CheckInstalled(); err != nil {
		testkit.Skip(t, err.Error())
	}
	dir := testkit.Must(os.MkdirTemp("", "mst-"))(t) // short, for the paths of sockets
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return lab.Store{Dir: filepath.Join(dir, "s"), Program: program(t)}
}

// program returns a static program for containers: this one if it is built without C, otherwise mustang.
func program(t *testing.T) string {
	t.Helper()
	exe := testkit.Must(os.Executable())(t)
	file := testkit.Must(elf.Open(exe))(t)
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return testkit.Must(mustang())(t)
		}
	}
	return exe
}

// mustang builds the program once. The file stays until the tests are over.
var mustang = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mst-program-")
	if err != nil {
		return "", err
	}
	programDir = dir
	path := filepath.Join(dir, "mustang")
	cmd := exec.Command("go", "build", "-o", path, "mustang/cmd/mustang")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return path, nil
})

var programDir string // a directory that TestMain removes
