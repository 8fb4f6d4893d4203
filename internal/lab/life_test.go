// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/lab/labfile"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

const childVariable = "MUSTANG_TEST_LAB_CHILD"

// TestMain also runs the processes that tests start: one that builds a lab and is killed, a client, a relay,
// processes in containers, and one that runs a guest.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		os.Exit(child(dir))
	}
	if os.Getenv(clientVariable) != "" {
		os.Exit(serveClient())
	}
	if code, ok := dockerProcess(); ok {
		os.Exit(code)
	}
	code := testkit.CheckLeaks(m)
	_ = os.RemoveAll(programDir) // no error if it is empty
	os.Exit(code)
}

func killed(dir string) []lab.Options {
	return []lab.Options{
		{Link: "veth", Datapath: lab.DatapathEBPF}, {Link: "macvlan", Via: lab.ViaNFTables},
		{Topology: lab.TopologyTwoHosts, Link: "ovs-veth", Overlay: lab.OverlayVXLAN},
		node(filepath.Join(dir, "labs")), // where leftovers looks
		{File: killedFile()},
	}
}

// killedFile describes hosts with datapaths and switches of their own.
func killedFile() *labfile.Lab {
	file, err := labfile.Read(strings.NewReader(`
name: killed
hosts:
  host-a: {datapath: ebpf, pods: {pod-a: {link: bridge}, pod-b: {link: ovs-veth}}}
  host-b: {datapath: ebpf, pods: {pod-c: {link: macvlan}}}
wires: [{endpoints: [host-a, host-b]}]
services: [{name: web, address: 10.96.0.100:80, backends: [pod-a:80]}]
`), "killed.yaml")
	if err != nil {
		panic(err)
	}
	return file
}

// child builds labs, starts a process in each, reports that, and waits to be killed.
func child(dir string) int {
	var labs []*lab.Lab
	defer runtime.KeepAlive(&labs) // a lab that is collected lets go of its lock
	for _, o := range killed(dir) {
		l, err := lab.Store{Dir: dir}.Up(context.Background(), options(o))
		if err == nil && o.Topology == lab.TopologyNode {
			_, err = useNode(l)
		}
		sleep := exec.Command("sleep", "600")
		if err == nil {
			labs = append(labs, l)
			err = l.Start(lab.PodA, sleep)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("pid", sleep.Process.Pid)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
	return 0
}

// leftovers lists the namespaces, mounts and files of labs whose names have a prefix.
func leftovers(t *testing.T, name, dir string) []string {
	t.Helper()
	left := testkit.Must(netns.List("mst-" + name))(t)
	mounts := testkit.Must(os.ReadFile("/proc/self/mountinfo"))(t)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) || strings.Contains(line, "mst-"+name) {
			left = append(left, strings.TrimSpace(line))
		}
	}
	entries, err := os.ReadDir(dir + "/labs")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // where no lab ever was, none is left
		t.Fatal(err)
	}
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	return left
}

// startChild starts this program with further variables in its environment, and returns its output. It has an input
// that does not end.
func startChild(t *testing.T, variables ...string) (*exec.Cmd, io.Reader) {
	t.Helper()
	exe := testkit.Must(os.Executable())(t)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), variables...)
	_, err := cmd.StdinPipe()
	testkit.Require(t, err == nil, "%v", err)
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.Succeed(t, cmd.Start())
	return cmd, out
}

func TestKilled(t *testing.T) {
	s := store(t)
	cmd, out := startChild(t, childVariable+"="+s.Dir)
	prefix := fmt.Sprintf("test-%d-", cmd.Process.Pid)
	var processes []int // pidfds: another process may soon have the PID
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		var pid int
		if _, err := fmt.Sscanf(lines.Text(), "pid %d", &pid); err != nil {
			t.Errorf("child: %s", lines.Text())
		}
		fd := testkit.Must(unix.PidfdOpen(pid, 0))(t)
		defer unix.Close(fd)
		processes = append(processes, fd)
	}
	testkit.Succeed(t, s.Reap())
	if infos, err := s.List(); err != nil || len(infos) != len(killed(s.Dir)) {
		t.Errorf("a live process's labs after Reap: %v, %v; want all", infos, err)
	}
	testkit.Succeed(t, cmd.Process.Kill())
	_ = cmd.Wait()
	testkit.Require(t, len(leftovers(t, prefix, s.Dir)) != 0, "nothing is left to reap: the test shows nothing")
	testkit.Succeed(t, s.Reap())
	left := leftovers(t, prefix, s.Dir)
	testkit.Check(t, len(left) == 0, "left after Reap: %q", left)
	if len(processes) != len(killed(s.Dir)) {
		t.Fatalf("child started %d processes, want one for each of %d labs", len(processes), len(killed(s.Dir)))
	}
	for _, fd := range processes {
		testkit.Eventually(t, 5*time.Second, func() error {
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); n == 0 || err != nil {
				return fmt.Errorf("a process of the labs lives: %v", err)
			}
			return nil
		})
	}
}

// zombie reports whether a process has ended and was not reaped.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestStanding(t *testing.T) {
	s := store(t)
	o := options(lab.Options{Link: "veth", Datapath: lab.DatapathEBPF})
	l := testkit.Must(s.Up(context.Background(), o))(t)
	if err := s.Down(o.Name); err == nil || !strings.Contains(err.Error(), "running process") {
		t.Errorf("Down of a lab that is owned: %v", err)
	}
	files := testkit.Must(l.Datapath().Policies().Objects.FilesDir())(t)
	testkit.Must(os.Stat(files))(t)
	testkit.Succeed(t, l.Keep())
	testkit.Succeed(t, l.Close())
	testkit.Succeed(t, s.Reap())
	if _, err := s.Up(context.Background(), o); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second lab of that name: %v", err)
	}
	info, err := s.Find("")
	testkit.Require(t, err == nil && info.Name == o.Name && info.Standing, "Find: %+v, %v", info, err)
	a, b := enter(t, s, info, lab.PodA), enter(t, s, info, lab.PodB)
	service := lab.Services()[1]
	testkit.Echo(t, a, "udp", service.Backends[0].Addr.String())
	_, err = testkit.RoundTrip(t, b, "udp", service.Frontend.String(), []byte("still there?"))
	testkit.Check(t, err == nil, "the standing lab: %v", err)
	_, err = s.Enter(info, "../../etc")
	testkit.Check(t, err != nil, "entered a place that is none")
	testkit.Succeed(t, s.Down(o.Name))
	left := leftovers(t, o.Name, s.Dir)
	testkit.Check(t, len(left) == 0, "left after Down: %q", left)
	_, err = os.Stat(files)
	testkit.Check(t, errors.Is(err, os.ErrNotExist), "%s after Down: %v", files, err)
	err = s.Down(o.Name)
	testkit.Check(t, errors.Is(err, os.ErrNotExist), "Down again: %v", err)
}

// TestDownCutShort has a Down that ends before all is removed: the lab is not listed as one that stands, and the next
// Reap removes the rest.
func TestDownCutShort(t *testing.T) {
	s := store(t)
	o := options(lab.Options{Link: "veth"})
	l := testkit.Must(s.Up(context.Background(), o))(t)
	testkit.Succeed(t, errors.Join(l.Keep(), l.Close()))
	busy := filepath.Join(s.Dir, "labs", o.Name+".ovs") // a mount that cannot be removed
	testkit.Succeed(t, errors.Join(os.Mkdir(busy, 0o700), unix.Mount("tmpfs", busy, "tmpfs", 0, "")))
	defer unix.Unmount(busy, unix.MNT_DETACH)
	err := s.Down(o.Name)
	testkit.Require(t, err != nil, "all was removed: the test shows nothing")
	info, err := s.Find(o.Name)
	testkit.Check(t, err == nil && !info.Standing, "standing %t, %v", info.Standing, err)
	testkit.Succeed(t, unix.Unmount(busy, 0))
	testkit.Succeed(t, s.Reap())
	left := leftovers(t, o.Name, s.Dir)
	testkit.Check(t, len(left) == 0, "left after Reap: %q", left)
}

func enter(t *testing.T, s lab.Store, info lab.Info, place string) *netns.Namespace {
	t.Helper()
	ns := testkit.Must(s.Enter(info, place))(t)
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// TestFailedUp creates the namespace of the lab's last pod before the lab.
func TestFailedUp(t *testing.T) {
	for _, o := range []lab.Options{
		{Link: "bridge"},
		{Topology: lab.TopologyTwoHosts, Link: "veth", NAT: true},
		{Topology: lab.TopologyTwoHosts, Link: "ovs-internal", Overlay: lab.OverlayVXLAN},
		{Topology: lab.TopologyTwoHosts, Link: "tap", Overlay: lab.OverlayBridgedVeth},
	} {
		t.Run(o.Topology+"/"+o.Link, func(t *testing.T) { testFailedUp(t, options(o)) })
	}
}

func testFailedUp(t *testing.T, o lab.Options) {
	s := store(t)
	name := "mst-" + o.Name + ".pod-b"
	ns := testkit.Must(netns.Create(name))(t)
	defer netns.Delete(name)
	defer ns.Close()
	_, err := s.Up(context.Background(), o)
	testkit.Require(t, errors.Is(err, os.ErrExist), "error %v, want one that matches os.ErrExist", err)
	left := leftovers(t, o.Name, s.Dir)
	testkit.Check(t, len(left) == 0, "left after a failed Up: %q", left)
}

func TestCancelledUp(t *testing.T) {
	s := store(t)
	o := options(lab.Options{Link: "veth"})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Up(ctx, o)
	testkit.Check(t, errors.Is(err, context.Canceled), "error %v, want context.Canceled", err)
	left := leftovers(t, o.Name, s.Dir)
	testkit.Check(t, len(left) == 0, "left after a cancelled Up: %q", left)
}

// TestNameOfAnotherDirectory builds a lab whose name a lab of another state directory has: that one must stay.
func TestNameOfAnotherDirectory(t *testing.T) {
	o := options(lab.Options{Link: "veth"})
	l := up(t, store(t), o)
	other := store(t)
	_, err := other.Up(t.Context(), o)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "another --state-dir"), "Up: %v", err)
	at := testkit.Echo(t, place(t, l, lab.PodA), "tcp", netip.AddrPortFrom(lab.PodAIPs[0], 0).String())
	_, err = testkit.RoundTrip(t, place(t, l, lab.PodB), "tcp", at.String(), []byte("x"))
	testkit.Succeed(t, err)
	left := testkit.Must(other.List())(t)
	testkit.Check(t, len(left) == 0, "labs %v", left)
}
