// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// TestSameAsAlone attaches one pod through the server and one with the plugin alone: both get the same except for
// addresses, and reach each other. Each is also checked and deleted in the other way.
func TestSameAsAlone(t *testing.T) {
	t.Parallel()
	for name, config := range map[string][]byte{
		"veth": network("veth", ""), "bridge": network("bridge", `,"masquerade":true`), "macvlan": network("macvlan", ""),
		"veth tc": network("veth", `,"services":"tc"`),
		"limits":  network("veth", `,"runtimeConfig":{"bandwidth":{"ingressRate":100000000,"egressRate":100000000}}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sameAsAlone(t, newFixture(t), config)
		})
	}
}

func sameAsAlone(t *testing.T, f *fixture, config []byte) {
	counts, _ := f.serve(f.options())
	f.works(call{verb: "DEL", pod: f.add("first", "none", config), socket: "none"})
	before := f.state()
	pods := map[string]*pod{f.socket: f.pod("through", config), "none": f.pod("alone", config)}
	wrote := map[string]answer{}
	for _, socket := range []string{f.socket, "none"} {
		wrote[socket] = f.works(call{verb: "ADD", pod: pods[socket], socket: socket})
	}
	n := counts.count("ADD")
	testkit.Check(t, n == 1, "the server did %d ADDs, want 1", n)
	through, alone := pods[f.socket], pods["none"]
	a, b := general(t, through), general(t, alone)
	testkit.Check(t, a == b, "through the server\n%s\nalone\n%s", a, b)
	if a, b := wrote[f.socket], wrote["none"]; a.stderr != b.stderr || lines(a.stdout) != lines(b.stdout) {
		t.Errorf("through the server it wrote\n%q %q\nalone\n%q %q", a.stdout, a.stderr, b.stdout, b.stderr)
	}
	f.reach(through, alone)
	f.reach(alone, through)
	for _, socket := range []string{f.socket, "none"} {
		f.works(call{verb: "CHECK", pod: through, socket: socket})
		f.works(call{verb: "CHECK", pod: alone, socket: socket})
	}
	f.works(call{verb: "DEL", pod: through, socket: "none"})
	f.works(call{verb: "DEL", pod: alone, socket: f.socket})
	f.works(call{verb: "DEL", pod: alone, socket: f.socket})
	f.same(before, "DEL")
	c, d := counts.count("CHECK"), counts.count("DEL")
	testkit.Check(t, c == 2 && d == 2, "the server did CHECK %d times and DEL %d times, want 2 of each", c, d)
}

// general returns the result of a pod without the pod's own values.
func general(t *testing.T, p *pod) string {
	t.Helper()
	r := types100.Result{CNIVersion: p.result.CNIVersion, Routes: p.result.Routes, DNS: p.result.DNS}
	for _, i := range p.result.Interfaces {
		one := *i
		if one.Sandbox == p.Path() {
			one.Sandbox = "the pod"
		} else {
			one.Name = "the host's"
		}
		one.Mac = fmt.Sprint(len(one.Mac))
		r.Interfaces = append(r.Interfaces, &one)
	}
	for _, ip := range p.result.IPs {
		one := *ip
		one.Address.IP = make(net.IP, len(one.Address.IP))
		r.IPs = append(r.IPs, &one)
	}
	return string(testkit.Must(json.Marshal(r))(t))
}

// lines returns the form of a text: its characters without letters and digits.
func lines(text string) string {
	return regexp.MustCompile(`[0-9a-zA-Z.:/-]+`).ReplaceAllString(text, "x")
}

// TestErrorsAsAlone has the plugin fail in both ways: the output is the same.
func TestErrorsAsAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	counts, _ := f.serve(f.options())
	config := network("veth", "")
	there := f.add("there", "none", config)
	for name, test := range map[string]struct {
		call   call
		served string
	}{
		"attached already": {call{verb: "ADD", pod: there}, "ADD failed"},
		"nothing to check": {call{verb: "CHECK", pod: f.pod("b", config)}, "CHECK failed"},
		"no free address": {call{verb: "ADD",
			pod: f.pod("c", network("veth", `,"runtimeConfig":{"ips":["10.9.0.2/24","10.9.0.2/24"]}`))}, "ADD failed"},
		"port": {call{verb: "ADD",
			pod: f.pod("d", network("veth",
				`,"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1,"hostIP":"9.9.9.9"}]}`))}, "ADD failed"},
		"unknown key": {call{verb: "ADD", pod: f.pod("e", network("veth", `,"linc":"veth"`))}, "ADD failed"},
		"no object":   {call{verb: "ADD", pod: f.pod("f", []byte(`[]`))}, ""},
		"old version": {call{verb: "GC", config: []byte(strings.Replace(string(config), "1.1.0", "1.0.0", 1))}, ""},
		"no verb":     {call{verb: "MOVE", pod: f.pod("g", config)}, ""},
		"bad container": {call{verb: "ADD", pod: there, env: []string{"CNI_ARGS=x"},
			before: []string{"env", "CNI_IFNAME=a/b"}}, ""},
		"no namespace": {call{verb: "ADD", pod: there, before: []string{"env", "CNI_NETNS=/nowhere",
			"CNI_CONTAINERID=h"}}, ""},
		"host's namespace": {call{verb: "ADD", pod: there, before: []string{"env", "CNI_NETNS=" + f.host.Path(),
			"CNI_CONTAINERID=i"}}, ""},
		"no input": {call{verb: "ADD", pod: there, before: []string{"sh", "-c", `exec "$0" <&-`}}, ""},
		"IPAM plugin": {call{verb: "ADD",
			pod: f.pod("j", []byte(`{"cniVersion":"1.0.0","name":"o","type":"mustang-cni","ipam":{"type":"host-local"}}`))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := *f
			f.t = t
			test.call.socket = f.socket
			got := f.run(test.call)
			test.call.socket = "none"
			want := f.run(test.call)
			testkit.Check(t, got == want && got.exit != 0, "through the server %+v, alone %+v", got, want)
			n := counts.count(test.served)
			testkit.Check(t, n == 1 || test.served == "", "the server did %d of %q, want 1", n, test.served)
			left := counts.left()
			testkit.Check(t, len(left) == 0, "the server did %v too", left)
		})
	}
	f.works(call{verb: "DEL", pod: there, socket: f.socket})
}

// TestGC collects invalid attachments through the server, also without the pod's namespace.
func TestGC(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	counts, _ := f.serve(f.options())
	config := network("veth", "")
	valid := f.add("valid", f.socket, config)
	before := f.state()
	f.add("gone", f.socket, config)
	f.add("gone2", "none", config)
	f.works(call{verb: "STATUS", config: config, socket: f.socket})
	f.works(call{verb: "GC", socket: f.socket,
		config: with(config, `"cni.dev/valid-attachments":[{"containerID":"valid","ifname":"eth0"}]`)})
	f.same(before, "GC")
	f.works(call{verb: "CHECK", pod: valid, socket: f.socket})
	for _, verb := range []string{"GC", "STATUS", "CHECK"} {
		n := counts.count(verb)
		testkit.Check(t, n == 1, "the server did %s %d times, want once", verb, n)
	}
	f.works(call{verb: "DEL", pod: valid, socket: f.socket})
	if slices.ContainsFunc(f.state(), func(s string) bool { return strings.Contains(s, "10.9.0.") }) {
		t.Errorf("DEL left %q", f.state())
	}
}

const childVariable = "MUSTANG_CNI_SERVER" // turns the test binary into a server that is killed at a step

// order is the input of such a server.
type order struct {
	Socket, StateDir, RunDir, BPFRoot, Cgroup string
	// Die is the number of steps and records of ADD after which it is killed. 0: never.
	Die int
}

// child runs a server in the namespace that it is in, until its stdin ends.
func child(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	host, err := netns.Current()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	steps := 0
	plugin := cni.Plugin{StateDir: o.StateDir, RunDir: o.RunDir, BPFRoot: o.BPFRoot, Cgroup: o.Cgroup}
	plugin.After = func(string) error {
		mu.Lock()
		defer mu.Unlock()
		steps++
		if steps == o.Die {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}
	s, err := Listen(Options{Socket: o.Socket, Host: host, Plugin: plugin})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println("ready")
	return s.Run(ctx)
}

// process is a server in a process of its own.
type process struct {
	f     *fixture
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func (f *fixture) start(o order) *process {
	f.t.Helper()
	o.Socket, o.StateDir, o.RunDir, o.BPFRoot, o.Cgroup = f.socket, f.plugin.StateDir, f.plugin.RunDir, f.plugin.BPFRoot,
		f.plugin.Cgroup
	text := testkit.Must(json.Marshal(o))(f.t)
	p := &process{f: f, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	p.stdin = testkit.Must(p.cmd.StdinPipe())(f.t)
	out := testkit.Must(p.cmd.StdoutPipe())(f.t)
	f.must(f.host.Start(p.cmd))
	f.t.Cleanup(func() { _, _ = p.cmd.Process.Kill(), p.cmd.Wait() })
	_, err := bufio.NewReader(out).ReadString('\n')
	testkit.Require(f.t, err == nil, "the server does not start: %v", err)
	return p
}

func (p *process) end() (killed bool) {
	p.f.t.Helper()
	_ = p.stdin.Close()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL {
		return true
	}
	p.f.must(err)
	return false
}

// TestKilled kills the server after each step of ADD in turn. The plugin fails with the code "try again later".
// An ADD after that works unless the first is complete, and DEL leaves nothing.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"veth", "bridge", "macvlan"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			config := network(mode, // ADD runs all steps
				`,"services":"tc","masquerade":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`)
			f.works(call{verb: "DEL", pod: f.add("first", "none", config), socket: "none"})
			before := f.state()
			alone := f.add("alone", "none", config)
			want := len(f.state())
			f.works(call{verb: "DEL", pod: alone, socket: "none"})
			for steps := 1; ; steps++ {
				server := f.start(order{Die: steps})
				p := f.pod(fmt.Sprint("a", steps), config)
				got := f.run(call{verb: "ADD", pod: p, socket: f.socket})
				killed := server.end()
				if killed {
					f.triesAgain(got, "ended before its answer")
					got = f.run(call{verb: "ADD", pod: p, socket: f.socket})
				}
				if complete := strings.Contains(got.stdout, "run DEL first"); !complete {
					left := f.state()
					testkit.Require(t, got.exit == 0 && len(left) == want, "killed after step %d: ADD: %+v left %q", steps, got, left)
					f.read(p, got)
					f.works(call{verb: "CHECK", pod: p, socket: f.socket})
				}
				f.works(call{verb: "DEL", pod: p, socket: f.socket})
				f.same(before, fmt.Sprintf("killed after step %d", steps))
				if !killed {
					testkit.Require(t, steps >= 10, "ADD has %d steps only", steps)
					return
				}
			}
		})
	}
}

// triesAgain fails the test unless the plugin has failed with the code "try again later", and a text about the agent.
func (f *fixture) triesAgain(a answer, text string) {
	f.t.Helper()
	want := "the agent at " + f.socket + " " + text
	testkit.Require(f.t, a.exit == 1 && strings.Contains(a.stdout, `"code":11`) && strings.Contains(a.stdout, want),
		"%+v, want %q", a, want)
}
