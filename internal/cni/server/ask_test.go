// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni/install"
	"mustang/internal/testkit"
)

func listening(t *testing.T, do func(*Call)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "sock")
	listener := testkit.Must(net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				if call, err := Receive(conn); err == nil {
					do(call)
				}
			}()
		}
	}()
	return path
}

// TestAskCarriesAll sends a request with all that there can be, and gets an answer of several packets.
func TestAskCarriesAll(t *testing.T) {
	sent := Request{Version: "1 (modified)", Layout: "9", Environment: map[string]string{},
		Config: []byte("{\"a\":\"\x00=\"}")}
	for _, name := range Variables() {
		sent.Environment[name] = "value=" + name
	}
	want := Answer{Stdout: bytes.Repeat([]byte("out"), 100000), Stderr: bytes.Repeat([]byte("err"), 50000), Exit: 7}
	got := make(chan Request, 1)
	path := listening(t, func(c *Call) {
		defer c.Close()
		got <- c.Request
		err := c.Answer(want)
		testkit.Check(t, err == nil, "%v", err)
	})
	answer := testkit.Must(ask(t.Context(), path, sent))(t)
	r := <-got
	testkit.Check(t, reflect.DeepEqual(r, sent), "sent %+v, got %+v", sent, r)
	testkit.Check(t, reflect.DeepEqual(answer, want),
		"got an answer of %d and %d bytes, exit %d", len(answer.Stdout), len(answer.Stderr), answer.Exit)
}

// TestAskErrors has agents that do nothing, or not all: the error names the agent.
func TestAskErrors(t *testing.T) {
	before := answerTime
	answerTime = time.Second
	t.Cleanup(func() { answerTime = before })
	part := Answer{Stdout: []byte("x")}.head()
	for name, test := range map[string]struct {
		do   func(*Call)
		want string // empty: declined
	}{
		"declines":            {func(c *Call) { _ = c.Decline(); c.Close() }, ""},
		"ends":                {func(c *Call) { c.Close() }, "ended before its answer"},
		"hangs":               {func(*Call) {}, "gives no answer within 1s"},
		"answers in part":     {func(c *Call) { _ = c.write(part); c.Close() }, "ended before its answer"},
		"answers without end": {func(c *Call) { _ = c.write(part) }, "gives no answer within 1s"},
		"answers something":   {func(c *Call) { _ = c.write([]byte("x")); c.Close() }, "ended before its answer"},
		"answers 4 GiB": {func(c *Call) { _ = c.write([]byte("\x00\xff\xff\xff\xff\xff\xff\xff\xff")) },
			"ended before its answer"},
	} {
		t.Run(name, func(t *testing.T) {
			path := listening(t, test.do)
			_, err := ask(t.Context(), path, Request{Version: "1", Layout: "1"})
			declined := errors.Is(err, errDeclined)
			testkit.Check(t, declined == (test.want == ""), "declined %v: %v", declined, err)
			testkit.Check(t, test.want == "" || strings.Contains(fmt.Sprint(err), "the agent at "+path+" "+test.want),
				"error %v", err)
		})
	}
	_, err := ask(t.Context(), filepath.Join(t.TempDir(), "none"), Request{})
	testkit.Check(t, err != nil, "an answer without an agent")
}

// TestAwaitOfHungAgent has an agent not answer: the wait for policies still ends with its context.
func TestAwaitOfHungAgent(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	path := listening(t, func(*Call) {})
	err := AwaitPolicies(ctx, path, Request{Version: "1", Layout: "1"})
	testkit.Check(t, err != nil && strings.Contains(err.Error(), path), "error %v", err)
}

// TestLargeRequest has the plugin alone do a verb that is too large for a request: it gets its whole configuration.
func TestLargeRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	counts, _ := f.serve(f.options())
	config := network("veth", "")
	valid := f.add("valid", f.socket, config)
	before := f.state()
	f.add("gone", f.socket, config)
	var others strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&others, `{"containerID":"other%d","ifname":"eth0"},`, i)
	}
	all := with(config, `"cni.dev/valid-attachments":[`+others.String()+`{"containerID":"valid","ifname":"eth0"}]`)
	testkit.Require(t, len(all) > MaxRequest, "the request has %d bytes only", len(all))
	f.works(call{verb: "GC", socket: f.socket, config: all})
	f.same(before, "GC")
	n := counts.count("GC")
	testkit.Check(t, n == 0, "the server did GC %d times", n)
	f.works(call{verb: "DEL", pod: valid, socket: f.socket})
}

// listen listens in place of a server, and returns the plugin's request.
func (f *fixture) listen(cmd *exec.Cmd) *Call {
	f.t.Helper()
	f.must(os.MkdirAll(filepath.Dir(f.socket), 0o700))
	listener := testkit.Must(net.ListenUnix("unixpacket", &net.UnixAddr{Name: f.socket, Net: "unixpacket"}))(f.t)
	defer listener.Close()
	f.must(f.host.Start(cmd))
	conn := testkit.Must(listener.AcceptUnix())(f.t)
	c := testkit.Must(Receive(conn))(f.t)
	f.t.Cleanup(c.Close)
	return c
}

// TestClientSignalled sends the plugin SIGTERM while a server works: of GC the server hears, and other verbs end.
func TestClientSignalled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cmd, _, _ := f.command(call{verb: "GC", socket: f.socket, config: network("veth", "")})
	c := f.listen(cmd)
	ctx, cancel := c.Context(t.Context())
	defer cancel()
	testkit.Eventually(t, time.Minute, func() error { // the Go program takes signals a moment later
		f.must(cmd.Process.Signal(unix.SIGTERM))
		if ctx.Err() == nil {
			return fmt.Errorf("the server has not heard of the signal")
		}
		return nil
	})
	_ = c.Answer(Answer{})
	_ = cmd.Wait()

	cmd, stdout, stderr := f.command(call{verb: "STATUS", socket: f.socket, config: network("veth", "")})
	c = f.listen(cmd)
	f.must(cmd.Process.Signal(unix.SIGTERM))
	large := strings.Repeat("result ", 20_000)
	f.must(c.Answer(Answer{Stdout: []byte(large), Stderr: []byte("complaint"), Exit: 3}))
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 3 || stdout.String() != large || stderr.String() != "complaint" {
		t.Errorf("exit %d, %d bytes of stdout, %s", got, stdout.Len(), stderr)
	}
}

// TestNoAnswer has an agent take a request and never answer: after a minute the plugin fails, and the runtime tries
// again.
func TestNoAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute")
	}
	t.Parallel()
	f := newFixture(t)
	cmd, stdout, _ := f.command(call{verb: "ADD", pod: f.pod("a", network("veth", "")), socket: f.socket})
	f.listen(cmd)
	_ = cmd.Wait()
	f.triesAgain(answer{stdout: stdout.String(), exit: cmd.ProcessState.ExitCode()}, "gives no answer within 1m0s")
}

// TestClientWithoutPlugin runs the client without the plugin beside it, for a server that declines: it names the file
// that is missing.
func TestClientWithoutPlugin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	o := f.options()
	o.Version = "another"
	f.serve(o)
	path := filepath.Join(t.TempDir(), "mustang-cni")
	f.must(os.WriteFile(path, install.Client(), 0o755))
	p := f.pod("a", network("veth", ""))
	got := f.run(call{verb: "ADD", pod: p, socket: f.socket, before: []string{path}})
	if want := `"msg":"cannot run ` + filepath.Dir(path) +
		`/mustang-cni-full, which has to be beside this program"`; got.exit != 1 || !strings.Contains(got.stdout, want) {
		t.Errorf("%+v", got)
	}
}
