// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
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

	"mustang/internal/lab"
	"mustang/internal/testkit"
	"mustang/internal/traffic"
)

const (
	dockerChildVariable   = "MUSTANG_TEST_DOCKER_CHILD"
	dockerProgramVariable = "MUSTANG_TEST_DOCKER_PROGRAM"
)

// dockerProcess is what containers of a test program that is static run, and the
// process that builds a lab and is killed. It reports whether this is one.
func dockerProcess() (code int, ok bool) {
	if dir := os.Getenv(dockerChildVariable); dir != "" {
		return dockerChild(lab.Store{Dir: dir, Program: os.Getenv(dockerProgramVariable)}), true
	}
	if len(os.Args) < 2 {
		return 0, false
	}
	switch os.Args[1] {
	case lab.PauseName:
		lab.Pause(context.Background())
	case "traffic-agent":
		if err := traffic.Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1, true
		}
	default:
		return 0, false
	}
	return 0, true
}

// dockerChild builds a lab, says so, and waits to be killed.
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

// dockerOptions are those that make the docker topology.
var dockerOptions = lab.Options{Topology: lab.TopologyDocker, Link: "bridge"}

// dockerStore returns a store whose labs can have containers.
func dockerStore(t *testing.T) lab.Store {
	t.Helper()
	testkit.RequireRoot(t)
	if err := lab.FindDocker(); err != nil {
		testkit.Skip(t, err.Error())
	}
	dir, err := os.MkdirTemp("", "mst-") // short, for the paths of sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return lab.Store{Dir: filepath.Join(dir, "s"), Program: program(t)}
}

// program returns a static program for containers: this one if it is built
// without C, otherwise mustang.
func program(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			path, err := mustang()
			if err != nil {
				t.Fatal(err)
			}
			return path
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

// programDir is what TestMain removes.
var programDir string
