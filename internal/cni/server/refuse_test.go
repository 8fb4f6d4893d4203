// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/netns"
	"mustang/internal/testkit"
	"mustang/internal/version"
)

// TestWorksAlone has servers that would not do the same as the plugin, or are none: the plugin does ADD and DEL alone.
func TestWorksAlone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options func(*Options)
		before  func(*fixture) []string // a program that runs the plugin
	}{
		"other version": {options: func(o *Options) { o.Version = "another" }},
		"other directory": {options: func(o *Options) {
			o.Plugin.RunDir += "2"
		}},
		"other datapath":  {options: func(o *Options) { o.Plugin.BPFRoot += "2" }},
		"other cgroup":    {options: func(o *Options) { o.Plugin.Cgroup = "/sys/fs/cgroup" }},
		"other namespace": {options: func(o *Options) { o.Host = nil }},
		"other directory at the same path": {before: func(f *fixture) []string {
			return []string{"unshare", "--mount", "sh", "-c", "mount -t tmpfs none " + f.plugin.RunDir + ` && exec "$0"`}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			o := f.options()
			if test.options != nil {
				test.options(&o)
			}
			if o.Host == nil {
				o.Host = testkit.Namespace(t, "other")
			}
			counts, _ := f.serve(o)
			c := call{socket: f.socket}
			if test.before != nil {
				c.before = test.before(f)
			}
			c.verb, c.pod = "ADD", f.pod("a", network("veth", ""))
			f.works(c)
			c.verb = "DEL"
			f.works(c)
			n := counts.count("ADD") + counts.count("DEL")
			testkit.Check(t, n == 0, "the server did %d verbs", n)
		})
	}
}

// TestOtherMountNamespace has the plugin in a mount namespace of its own with the same directories: the server does
// what needs no path, and the plugin the rest. The path of the pod's namespace leads nowhere for the server.
func TestOtherMountNamespace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	testkit.RequireTool(t, "unshare")
	counts, _ := f.serve(f.options())
	config := network("veth", "")
	f.works(call{verb: "DEL", pod: f.add("first", "none", config), socket: "none"})
	before := f.state()
	p := f.pod("a", config)
	dir := t.TempDir()
	own := []string{"unshare", "--mount", "sh", "-c", "mount -t tmpfs none " + dir + " && touch " + dir +
		"/ns && mount --bind " + p.Path() + " " + dir +
		"/ns && export CNI_NETNS=" + dir + `/ns && exec "$0"`}
	f.works(call{verb: "ADD", pod: p, socket: f.socket, before: own})
	got := p.result.Interfaces[1].Sandbox
	testkit.Check(t, got == dir+"/ns", "the sandbox is %s", got)
	f.works(call{verb: "CHECK", pod: p, socket: f.socket, before: own})
	for _, verb := range []string{"ADD", "CHECK"} {
		n := counts.count(verb)
		testkit.Check(t, n == 1, "the server did %s %d times, want once", verb, n)
	}
	all := with(config, `"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]`)
	f.works(call{verb: "GC", socket: f.socket, before: []string{"unshare", "--mount"}, config: all})
	f.works(call{verb: "DEL", pod: p, socket: f.socket, before: own})
	f.works(call{verb: "DEL", pod: p, socket: f.socket, before: []string{"unshare", "--mount", "env", "CNI_NETNS="}})
	f.same(before, "DEL")
	d, g := counts.count("DEL"), counts.count("GC")
	testkit.Check(t, d == 1 && g == 0, "the server did DEL %d times and GC %d times, want once and never", d, g)
}

// TestNonsense sends the server invalid requests. It does none of them, and serves the plugin afterwards.
func TestNonsense(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	counts, _ := f.serve(f.options())
	var open [2]int
	f.must(unix.Pipe2(open[:], unix.O_CLOEXEC))
	defer unix.Close(open[0])
	defer unix.Close(open[1])
	env := "mustang-cni 2\x00devel\x00" + cni.Layout() + "\x00"
	for name, test := range map[string]struct {
		packet string
		fds    []int
	}{
		"nothing":          {"", nil},
		"no variable":      {env + "\x00{}", nil},
		"a pipe":           {env + "CNI_COMMAND=ADD\x00\x00{}", []int{open[0]}},
		"two descriptors":  {env + "\x00{}", []int{open[0], open[0]}},
		"many descriptors": {env + "\x00{}", []int{open[0], open[0], open[0], open[0], open[0], open[0]}},
		"no end":           {env + "CNI_COMMAND=ADD", nil},
		"twice":            {env + "CNI_COMMAND=ADD\x00CNI_COMMAND=DEL\x00\x00{}", nil},
		"foreign variable": {env + "LD_PRELOAD=x\x00\x00{}", nil},
		"other protocol":   {"mustang-cni 1\x00call\x00\x00{}", nil},
		"other layout":     {"mustang-cni 2\x00devel\x00\x00CNI_COMMAND=STATUS\x00\x00{}", nil},
		"large":            {env + "\x00" + strings.Repeat(" ", 140<<10), nil},
		"zeros":            {strings.Repeat("\x00", 100), nil},
	} {
		conn := testkit.Must(net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: f.socket, Net: "unixpacket"}))(f.t)
		_, _, err := conn.WriteMsgUnix([]byte(test.packet), unix.UnixRights(test.fds...), nil)
		f.must(err)
		f.must(conn.SetReadDeadline(time.Now().Add(time.Minute)))
		if n, err := conn.Read(make([]byte, 9)); n > 1 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the server answers %d bytes, %v", name, n, err)
		}
		_ = conn.Close()
	}
	p := f.add("a", f.socket, network("veth", ""))
	f.works(call{verb: "DEL", pod: p, socket: f.socket})
	n := counts.count("ADD")
	testkit.Check(t, n == 1, "the server did %d ADDs, want 1", n)
}

// TestFault has a verb panic: the plugin prints an error, DEL leaves nothing, and the server continues.
func TestFault(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := network("veth", "")
	f.works(call{verb: "DEL", pod: f.add("first", "none", config), socket: "none"})
	before := f.state()
	o := f.options()
	o.Plugin.After = func(step string) error {
		if step == "link" {
			panic("made up")
		}
		return nil
	}
	f.serve(o)
	p := f.pod("a", config)
	a := f.run(call{verb: "ADD", pod: p, socket: f.socket})
	testkit.Check(t, a.exit == 1 && strings.Contains(a.stdout, "the agent has a fault: made up"), "ADD: %+v", a)
	f.works(call{verb: "DEL", pod: p, socket: f.socket})
	f.same(before, "DEL")
}

// TestSignalledPlugin ends the plugin while the server works: the server finishes, and DEL leaves nothing. SIGTERM does
// not end it.
func TestSignalledPlugin(t *testing.T) {
	t.Parallel()
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			config := network("veth", "")
			f.works(call{verb: "DEL", pod: f.add("first", "none", config), socket: "none"})
			before := f.state()
			o := f.options()
			reached, release := make(chan struct{}), make(chan struct{})
			var once sync.Once
			o.Plugin.After = func(string) error {
				once.Do(func() {
					close(reached)
					<-release
				})
				return nil
			}
			counts, _ := f.serve(o)
			p := f.pod("a", config)
			cmd, stdout, _ := f.command(call{verb: "ADD", pod: p, socket: f.socket})
			f.must(f.host.Start(cmd))
			<-reached
			f.must(cmd.Process.Signal(signal))
			if signal == unix.SIGKILL {
				_ = cmd.Wait()
			}
			close(release)
			if signal == unix.SIGTERM {
				err := cmd.Wait()
				testkit.Check(t, err == nil && strings.Contains(stdout.String(), `"ips"`), "ADD: %v, %s", err, stdout)
			}
			testkit.Eventually(t, time.Minute, func() error {
				if n := counts.count("ADD"); n != 1 {
					return fmt.Errorf("the server has done %d ADDs", n)
				}
				return nil
			})
			f.works(call{verb: "DEL", pod: p, socket: f.socket})
			f.same(before, "DEL")
		})
	}
}

// TestInUse distinguishes a served socket from an abandoned one.
func TestInUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	wants := func(path string, want bool) {
		t.Helper()
		used, err := InUse(path)
		testkit.Check(t, used == want && err == nil, "%s is in use %v, want %v; error %v", path, used, want, err)
	}
	wants(f.socket, false)
	_, stop := f.serve(f.options())
	wants(f.socket, true)
	stop()
	wants(f.socket, false)

	// A server that takes no connections has a queue that fills up.
	full := filepath.Join(t.TempDir(), "full")
	fd := testkit.Must(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(f.t)
	f.must(unix.Bind(fd, &unix.SockaddrUnix{Name: full}))
	wants(full, false)
	f.must(unix.Listen(fd, 0))
	for range 4 {
		wants(full, true)
	}
	f.must(unix.Close(fd))
	wants(full, false)
	used, err := InUse(full + "/below")
	testkit.Check(t, !used && err != nil, "a path that leads nowhere: in use %v, error %v", used, err)
}

// TestNonRootRefused runs either end as another user: the socket is closed to that user, and neither end speaks to one
// who got past that.
func TestNonRootRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	o := f.options()
	var err error
	o.Host, err = netns.Current()
	f.must(err)
	defer o.Host.Close()
	counts, stop := f.serve(o)
	for path, want := range map[string]os.FileMode{filepath.Dir(f.socket): 0o700, f.socket: 0o600} {
		info, err := os.Stat(path)
		testkit.Check(t, err == nil && info.Mode().Perm() == want, "%s: %v, %v", path, info.Mode(), err)
	}
	for _, dir := range []string{f.socket, filepath.Dir(f.socket), f.dir, filepath.Dir(f.dir)} {
		f.must(os.Chmod(dir, 0o777))
	}
	done := func() int { return counts.count("STATUS") + counts.count("STATUS failed") }
	testkit.Eventually(t, 20*time.Second, func() error { // a busy server lets go of who is slow to ask
		if f.askAs(0); done() == 0 {
			return errors.New("the server did no verb of root")
		}
		return nil
	})
	before := done()
	if f.askAs(65534); done() != before {
		t.Errorf("the server did a verb of another user")
	}
	stop()

	// A listener of another user would answer with nonsense.
	asked := f.listenAs(65534)
	p := f.pod("a", network("veth", ""))
	f.works(call{verb: "ADD", pod: p, socket: f.socket})
	f.works(call{verb: "DEL", pod: p, socket: f.socket})
	n := asked.Load()
	testkit.Check(t, n <= 0, "the plugin sent %d packets to another user", n)
}

func (f *fixture) as(user int, do func() error) {
	f.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(user int) {
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(user), ^uintptr(0))
		testkit.Require(f.t, errno == 0, "%v", errno)
	}
	become(user)
	err := do()
	become(0)
	f.must(err)
}

// askAs sends STATUS as a user, and waits until the server has closed the connection.
func (f *fixture) askAs(user int) {
	f.t.Helper()
	fd := testkit.Must(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(f.t)
	defer unix.Close(fd)
	f.as(user, func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: f.socket}) })
	p := f.plugin
	packet := strings.Join([]string{
		"mustang-cni 2", version.Program(), cni.Layout(), "CNI_COMMAND=STATUS", "CNI_PATH=/nowhere",
		"MUSTANG_CNI_STATE_DIR=" + p.StateDir,
		"MUSTANG_CNI_RUN_DIR=" + p.RunDir, "MUSTANG_BPF_ROOT=" + p.BPFRoot, "MUSTANG_CNI_CGROUP=" + p.Cgroup, "",
		string(network("veth", "")),
	}, "\x00")
	err := unix.Sendmsg(fd, []byte(packet), nil, nil, unix.MSG_NOSIGNAL)
	if err != nil && !errors.Is(err, unix.EPIPE) { // EPIPE: the server has closed the connection already
		f.t.Fatal(err)
	}
	for n := 1; n > 0 && err == nil; {
		n, _, err = unix.Recvfrom(fd, make([]byte, 1), 0)
	}
}

// listenAs listens at the socket as another user, answers all packets, and counts them.
func (f *fixture) listenAs(user int) *atomic.Int32 {
	f.t.Helper()
	fd := testkit.Must(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(f.t)
	f.must(unix.Bind(fd, &unix.SockaddrUnix{Name: f.socket}))
	f.as(user, func() error { return unix.Listen(fd, 9) }) // the kernel notes the user of the thread
	var packets atomic.Int32
	ended := make(chan struct{})
	f.t.Cleanup(func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		<-ended
		_ = unix.Close(fd)
	})
	go func() {
		defer close(ended)
		for {
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				return
			}
			if n, _, err := unix.Recvfrom(conn, make([]byte, 1), 0); err == nil && n > 0 {
				packets.Add(1)
				_ = unix.Send(conn, []byte("\x00\x03\x00\x00\x00\x00\x00\x00\x00"), unix.MSG_NOSIGNAL)
				_ = unix.Send(conn, []byte("lie"), unix.MSG_NOSIGNAL)
			}
			_ = unix.Close(conn)
		}
	}()
	return &packets
}
