// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// dockerStages are what comes to be while a docker lab is built, in this order.
func dockerStages() []string {
	return []string{"namespace host-b", "file dockerd.log", "file docker.pid", "file docker.sock", "control group",
		"namespace container-a", "namespace container-b", "all"}
}

// reached reports whether the building of a lab has come that far.
func reached(t *testing.T, s lab.Store, name, stage string) bool {
	t.Helper()
	kind, what, _ := strings.Cut(stage, " ")
	path := filepath.Join(nl.Directory, "mst-"+name+"."+what)
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
		return false // until the process says so
	}
	_, err := os.Stat(path)
	return err == nil
}

// TestDockerKilled kills the process that builds a lab at each stage, and looks
// at what is left of the lab once it was cleared.
func TestDockerKilled(t *testing.T) {
	testkit.NotInGuest(t) // where each start of Docker takes a minute
	s := dockerStore(t)
	before := testkit.RootSnapshot(t)
	for _, stage := range dockerStages() {
		t.Run(stage, func(t *testing.T) {
			name := killedBuild(t, s, stage)
			if len(dockerLeftovers(t, s, name)) == 0 {
				t.Fatal("nothing is left to reap: the test shows nothing")
			}
			if err := s.Reap(); err != nil {
				t.Fatal(err)
			}
			if left := dockerLeftovers(t, s, name); len(left) > 0 {
				t.Errorf("left after Reap: %q", left)
			}
		})
	}
	if after := testkit.RootSnapshot(t); after != before {
		t.Errorf("left in the root namespace: %s", firstDifference(before, after))
	}
}

// killedBuild starts a process that builds a lab, and kills it when it has come
// to the stage. It returns the lab's name.
func killedBuild(t *testing.T, s lab.Store, stage string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), dockerChildVariable+"="+s.Dir, dockerProgramVariable+"="+s.Program)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
			if line != "ready" {
				t.Fatalf("child: %s", line)
			}
			return name
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("it takes too long")
		}
	}
	return name
}

// TestDockerCancelled ends the building of a lab by its context at each stage,
// and by the death of dockerd.
func TestDockerCancelled(t *testing.T) {
	testkit.NotInGuest(t) // where each start of Docker takes a minute
	s := dockerStore(t)
	for _, stage := range []string{"file dockerd.log", "file docker.sock", "control group", "namespace container-a"} {
		t.Run(stage, func(t *testing.T) {
			o := options(dockerOptions)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				for ctx.Err() == nil && !reached(t, s, o.Name, stage) {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
			checkFailedDocker(t, s, o, func(o lab.Options) (*lab.Lab, error) { return s.Up(ctx, o) }, context.Canceled.Error())
		})
	}
	t.Run("dockerd dies", func(t *testing.T) {
		o := options(dockerOptions)
		go func() {
			for t.Context().Err() == nil {
				for _, process := range labProcesses(t, o.Name, "dockerd") {
					var pid int
					if _, err := fmt.Sscanf(process, "%d ", &pid); err == nil {
						_ = unix.Kill(pid, unix.SIGTERM)
						return
					}
				}
				time.Sleep(time.Millisecond)
			}
		}()
		checkFailedDocker(t, s, o, func(o lab.Options) (*lab.Lab, error) { return s.Up(t.Context(), o) }, "dockerd ended")
	})
}

// checkFailedDocker has up fail with an error that contains a text, in one line,
// and looks for what is left.
//
//revive:disable-next-line:argument-limit // t comes on top
func checkFailedDocker(t *testing.T, s lab.Store, o lab.Options, up func(lab.Options) (*lab.Lab, error), text string) {
	t.Helper()
	_, err := up(o)
	if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want %q in one line", err, text)
	}
	if left := dockerLeftovers(t, s, o.Name); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestDockerOptions(t *testing.T) {
	s := lab.Store{Dir: t.TempDir() + "/state"}
	for name, o := range map[string]lab.Options{
		"link \"veth\"":     {Link: "veth"},
		"datapath ebpf":     {Link: "bridge", Datapath: lab.DatapathEBPF},
		"guests":            {Link: "bridge", Guests: true},
		"overlay":           {Link: "bridge", Overlay: lab.OverlayVXLAN},
		"not of pod-links":  {Topology: "pod-links", Link: "bridge", NoProxy: true},
		"via iptables":      {Link: "bridge", Via: lab.ViaIPTables},
		"call is a setting": {Link: "bridge", NetfilterCall: true},
	} {
		t.Run(name, func(t *testing.T) {
			if o.Topology == "" {
				o.Topology = lab.TopologyDocker
			}
			_, err := s.Up(t.Context(), options(o))
			var option *lab.OptionError
			if !errors.As(err, &option) || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v, want an OptionError that says %q", err, name)
			}
		})
	}
}
