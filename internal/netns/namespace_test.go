// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func inode(t *testing.T, ns *netns.Namespace) uint64 {
	t.Helper()
	return testkit.Must(ns.Inode())(t)
}

// TestNamed goes through the life of a named namespace.
func TestNamed(t *testing.T) {
	testkit.RequireRoot(t)
	root := testkit.RootSnapshot(t)
	name := fmt.Sprintf("mst-test-%d-named", os.Getpid())
	t.Cleanup(func() { _ = netns.Delete(name) })
	created := testkit.Must(netns.Create(name))(t)
	defer created.Close()
	if created.Name() != name || created.Path() != filepath.Join(netns.Directory, name) {
		t.Errorf("name is %q, path is %q", created.Name(), created.Path())
	}
	lo, err := rtnl.In(created).Device("lo")
	testkit.Check(t, err == nil && lo.Up, "loopback device is %+v, %v", lo, err)
	for _, path := range []string{created.Path(), "/var" + created.Path()} {
		opened := testkit.Must(netns.Open(path))(t)
		testkit.Check(t, inode(t, opened) == inode(t, created) && opened.Name() == name && opened.Path() == path,
			"%s is another namespace, or named %q", path, opened.Name())
		testkit.Succeed(t, opened.Close())
	}
	_, err = netns.Create(name)
	testkit.Check(t, errors.Is(err, fs.ErrExist), "creating it again: %v", err)
	names, err := netns.List(name)
	testkit.Check(t, err == nil && slices.Equal(names, []string{name}), "list is %v, %v", names, err)
	names, err = netns.List("mst-no-such")
	testkit.Check(t, err == nil && len(names) == 0, "list is %v, %v", names, err)
	for range 2 {
		testkit.Succeed(t, netns.Delete(name))
	}
	_, err = netns.Open(created.Path())
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "opening what was deleted: %v", err)
	_, err = rtnl.In(created).Device("lo")
	testkit.Check(t, err == nil, "an open namespace outlives its name: %v", err)
	got := testkit.RootSnapshot(t)
	testkit.Check(t, got == root, "the root namespace changed")
}

// TestIproute2 sees our namespaces with iproute2, and iproute2's with us.
func TestIproute2(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "ip")
	ours := testkit.Namespace(t, "ours")
	out, err := exec.Command("ip", "-n", ours.Name(), "-o", "link").CombinedOutput()
	testkit.Check(t, err == nil && strings.Contains(string(out), "LOOPBACK,UP"), "ip says %q, %v", out, err)
	theirs := ours.Name() + "-theirs"
	out, err = exec.Command("ip", "netns", "add", theirs).CombinedOutput()
	testkit.Require(t, err == nil, "ip netns add: %s", out)
	t.Cleanup(func() { _ = netns.Delete(theirs) })
	opened := testkit.Must(netns.Open(filepath.Join(netns.Directory, theirs)))(t)
	defer opened.Close()
	testkit.Succeed(t, netns.Delete(theirs))
	out, err = exec.Command("ip", "netns", "list").Output()
	testkit.Check(t, err == nil && !strings.Contains(string(out), theirs), "ip netns list: %q, %v", out, err)
}

// TestCreateAtOnce has many try for one name: exactly one gets it.
func TestCreateAtOnce(t *testing.T) {
	testkit.RequireRoot(t)
	name := fmt.Sprintf("mst-test-%d-race", os.Getpid())
	t.Cleanup(func() { _ = netns.Delete(name) })
	const n = 8
	var group sync.WaitGroup
	results := make([]error, n)
	for i := range n {
		group.Go(func() {
			ns, err := netns.Create(name)
			results[i] = err
			if err == nil {
				_ = ns.Close()
			}
		})
	}
	group.Wait()
	won := 0
	for _, err := range results {
		if err == nil {
			won++
		} else if !errors.Is(err, fs.ErrExist) {
			t.Error(err)
		}
	}
	testkit.Check(t, won == 1, "%d got the name", won)
}

func TestBadNames(t *testing.T) {
	testkit.RequireRoot(t)
	for _, name := range []string{"", ".", "..", "a/b", "../x", "a\x00b", strings.Repeat("x", 256)} {
		if ns, err := netns.Create(name); err == nil {
			_ = ns.Close()
			t.Errorf("CreateNamespace(%q) is no error", name)
		}
		err := netns.Delete(name)
		testkit.Check(t, err != nil, "DeleteNamespace(%q) is no error", name)
	}
}

// TestStale lists and deletes a name that a killed process left without a namespace.
func TestStale(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.Namespace(t, "makes-the-directory")
	name := fmt.Sprintf("mst-test-%d-stale", os.Getpid())
	path := filepath.Join(netns.Directory, name)
	testkit.Succeed(t, os.WriteFile(path, nil, 0))
	t.Cleanup(func() { _ = os.Remove(path) })
	_, err := netns.Open(path)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "not a namespace"), "opening it: %v", err)
	names, err := netns.List(name)
	testkit.Check(t, err == nil && len(names) == 1, "list is %v, %v", names, err)
	testkit.Succeed(t, netns.Delete(name))
	_, err = os.Stat(path)
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "it is still there: %v", err)
}

func TestOpenOthers(t *testing.T) {
	testkit.RequireRoot(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	testkit.Succeed(t, unix.Mkfifo(fifo, 0o600))
	for path, says := range map[string]string{
		"/proc/self/ns/mnt":   "not a network namespace",
		"/etc/passwd":         "not a namespace",
		"/":                   "not a namespace",
		"/no/such/file":       "no such file",
		fifo:                  "not a namespace",
		"/proc/self/ns/net/x": "not a directory",
	} {
		if ns, err := netns.Open(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("OpenNamespace(%q) = %v, %v, wanted: %s", path, ns, err, says)
		}
	}
	ours := testkit.Must(netns.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getpid())))(t)
	defer ours.Close()
	now := testkit.Must(netns.Current())(t)
	defer now.Close()
	testkit.Check(t, inode(t, ours) == inode(t, now), "the current namespace is not that of the process")
}

// TestIdentity compares the cookies and inodes of two namespaces, each by two ways to open it.
func TestIdentity(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 5, 14)
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	again := testkit.Must(netns.Open(a.Path()))(t)
	defer again.Close()
	cookie := func(ns *netns.Namespace) uint64 {
		return testkit.Must(ns.Cookie())(t)
	}
	if cookie(a) == 0 || cookie(a) != cookie(again) || cookie(a) == cookie(b) {
		t.Errorf("cookies are %d, %d and %d", cookie(a), cookie(again), cookie(b))
	}
	if inode(t, a) != inode(t, again) || inode(t, a) == inode(t, b) {
		t.Errorf("inodes are %d, %d and %d", inode(t, a), inode(t, again), inode(t, b))
	}
}

// TestStart starts a process inside, which has our mounts and cgroup.
func TestStart(t *testing.T) {
	ns := testkit.Namespace(t, "start")
	var out strings.Builder
	cmd := exec.Command("readlink", "/proc/self/ns/net", "/proc/self/ns/mnt", "/proc/self/ns/cgroup")
	cmd.Stdout = &out
	testkit.Succeed(t, ns.Start(cmd))
	testkit.Succeed(t, cmd.Wait())
	want := fmt.Sprintf("net:[%d]\n", inode(t, ns))
	for _, kind := range []string{"mnt", "cgroup"} {
		link := testkit.Must(os.Readlink("/proc/self/ns/" + kind))(t)
		want += link + "\n"
	}
	testkit.Check(t, out.String() == want, "the process is in\n%swanted:\n%s", out.String(), want)
	cmd = exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := ns.Start(cmd); err == nil {
		_ = cmd.Wait()
		t.Error("Pdeathsig is accepted")
	}
	err := ns.Start(exec.Command("/no/such/program"))
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "starting what is not there: %v", err)
}

// TestBind names a namespace without a name, as a process's may be.
func TestBind(t *testing.T) {
	first := testkit.Namespace(t, "first")
	name := first.Name() + "-again"
	named := testkit.Must(netns.Bind(first.Path(), name))(t)
	defer named.Close()
	defer netns.Delete(name)
	testkit.Check(t, named.Path() == filepath.Join(netns.Directory, name), "path %s", named.Path())
	opened := testkit.Must(netns.Open(named.Path()))(t)
	defer opened.Close()
	for _, ns := range []*netns.Namespace{named, opened} {
		want, _ := first.Inode()
		got, err := ns.Inode()
		testkit.Check(t, err == nil && got == want, "inode %d, %v; want %d", got, err, want)
	}
	_, err := netns.Bind(first.Path(), name)
	testkit.Check(t, errors.Is(err, fs.ErrExist), "a name that is taken: %v", err)
	_, err = netns.Bind("/proc/self/ns/mnt", name+"-other")
	testkit.Check(t, err != nil, "bound a file that is not a network namespace")
	left, err := netns.List(name + "-other")
	testkit.Check(t, err == nil && len(left) == 0, "left: %q, %v", left, err)
}

// TestCreateNeedsNoLock names a namespace while another process has the lock of a directory that is a shared mount
// already.
func TestCreateNeedsNoLock(t *testing.T) {
	testkit.Namespace(t, "first")
	dir := testkit.Must(os.Open(netns.Directory))(t)
	defer dir.Close()
	testkit.Succeed(t, unix.Flock(int(dir.Fd()), unix.LOCK_EX))
	name := fmt.Sprintf("mst-test-%d-unlocked", os.Getpid())
	ns := testkit.Must(netns.Create(name))(t)
	defer netns.Delete(name)
	defer ns.Close()
}

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }
