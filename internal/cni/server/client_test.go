// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni/install"
	"mustang/internal/testkit"
)

// TestLargeRequest has the plugin alone do what is too large for a request: it gets all of its configuration.
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
	if len(all) <= MaxRequest {
		t.Fatalf("the request has %d bytes only", len(all))
	}
	f.works(call{verb: "GC", socket: f.socket, config: all})
	f.same(before, "GC")
	if n := counts.count("GC"); n != 0 {
		t.Errorf("the server did GC %d times", n)
	}
	f.works(call{verb: "DEL", pod: valid, socket: f.socket})
}

// listen listens in place of a server, and returns the plugin's request.
func (f *fixture) listen(cmd *exec.Cmd) *Call {
	f.t.Helper()
	f.must(os.MkdirAll(filepath.Dir(f.socket), 0o700))
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: f.socket, Net: "unixpacket"})
	f.must(err)
	defer listener.Close()
	f.must(f.host.Start(cmd))
	conn, err := listener.AcceptUnix()
	f.must(err)
	c, err := Receive(conn)
	f.must(err)
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

// TestNoAnswer has an agent take a request and never answer: after a minute the plugin fails, and the runtime tries again.
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

// TestClientWithoutPlugin runs the client without the plugin beside it, for a server that declines: it names the file that is missing.
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
	if want := `"msg":"cannot run ` + filepath.Dir(path) + `/mustang-cni-full, which has to be beside this program"`; got.exit != 1 || !strings.Contains(got.stdout, want) {
		t.Errorf("%+v", got)
	}
}
