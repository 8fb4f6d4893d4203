// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/netns"
	"mustang/internal/testkit"
	"mustang/internal/version"
)

// TestNonRootRefused has either end belong to somebody else: the socket is closed to them, and neither end speaks to one who got
// past that.
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
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
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
	if n := asked.Load(); n > 0 {
		t.Errorf("the plugin sent %d packets to another user", n)
	}
}

// as calls do on a thread of another user.
func (f *fixture) as(user int, do func() error) {
	f.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(user int) {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(user), ^uintptr(0)); errno != 0 {
			f.t.Fatal(errno)
		}
	}
	become(user)
	err := do()
	become(0)
	f.must(err)
}

// askAs sends STATUS as a user, and waits until the server has closed the connection.
func (f *fixture) askAs(user int) {
	f.t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	f.must(err)
	defer unix.Close(fd)
	f.as(user, func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: f.socket}) })
	p := f.plugin
	packet := strings.Join([]string{
		"mustang-cni 2", version.Program(), cni.Layout(), "CNI_COMMAND=STATUS", "CNI_PATH=/nowhere", "MUSTANG_CNI_STATE_DIR=" + p.StateDir,
		"MUSTANG_CNI_RUN_DIR=" + p.RunDir, "MUSTANG_BPF_ROOT=" + p.BPFRoot, "MUSTANG_CNI_CGROUP=" + p.Cgroup, "", string(network("veth", "")),
	}, "\x00")
	err = unix.Sendmsg(fd, []byte(packet), nil, nil, unix.MSG_NOSIGNAL)
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
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	f.must(err)
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
