// SPDX-License-Identifier: Apache-2.0

// Package testkit contains helpers of tests that use the real kernel: requirements,
// namespaces, echo servers. Only tests import it.
package testkit

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// namespacePrefix starts the names of all namespaces of tests. The process id and a dash follow.
const namespacePrefix = "mst-test-"

// namespaces counts the namespaces that this process made. Names are unique, so a test that deletes twice cannot
// delete another test's namespace.
var namespaces atomic.Int64

// Namespace creates a namespace named mst-test-PID-N-HINT with its loopback device up. The test's end deletes it.
func Namespace(t testing.TB, hint string) *netns.Namespace {
	t.Helper()
	RequireRoot(t)
	for {
		namespace, err := netns.Create(fmt.Sprintf("%s%d-%d-%s", namespacePrefix, os.Getpid(), namespaces.Add(1), hint))
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		Succeed(t, err)
		t.Cleanup(func() {
			if err := netns.Delete(namespace.Name()); err != nil {
				t.Error(err)
			}
			if err := namespace.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
				t.Error(err)
			}
		})
		return namespace
	}
}

// CheckLeaks runs the tests of m for TestMain, which passes the result to os.Exit. It fails if they leave a namespace
// behind. First it deletes the namespaces of killed test processes.
func CheckLeaks(m *testing.M) int {
	if err := clearDead(); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(800) // the default collects heaps of a few MB several times a second
	}
	code := m.Run()
	names, err := netns.List(fmt.Sprintf("%s%d-", namespacePrefix, os.Getpid()))
	if err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		return 1
	}
	if len(names) == 0 {
		return code
	}
	fmt.Fprintln(os.Stderr, "testkit: namespaces left behind:", strings.Join(names, " "))
	for _, name := range names {
		_ = netns.Delete(name)
	}
	return 1
}

func clearDead() error {
	names, err := netns.List(namespacePrefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		owner, _, _ := strings.Cut(strings.TrimPrefix(name, namespacePrefix), "-")
		pid, err := strconv.Atoi(owner)
		if err != nil || strings.Contains(name, ".") { // a lab's, which its store removes with the processes in it
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := netns.Delete(name); err != nil {
			return err
		}
	}
	return nil
}

func closeAtCleanup(t testing.TB, closer io.Closer) { t.Cleanup(func() { _ = closer.Close() }) }

// VethPair creates two namespaces with a veth pair between them: device left in the
// first, with 10.0.0.1 and fd00:1::1, and right in the second, with 10.0.0.2 and fd00:1::2.
func VethPair(t testing.TB) (a, b *netns.Namespace) {
	t.Helper()
	RequireRoot(t)
	a, b = Namespace(t, "a"), Namespace(t, "b")
	Succeed(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: "left"}, rtnl.VethEnd{Namespace: b, Name: "right"}, 1500))
	for name, end := range map[string]struct {
		ns    *netns.Namespace
		addrs []netip.Prefix
	}{
		"left":  {a, []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00:1::1/64")}},
		"right": {b, []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("fd00:1::2/64")}},
	} {
		Succeed(t, rtnl.In(end.ns).Configure(name, rtnl.DeviceConfig{Addresses: end.addrs, Up: true}))
	}
	return a, b
}

// snapshotCommands print the contents of a network namespace. Programs that are not installed are skipped.
var snapshotCommands = []string{
	"ip -details -oneline link",
	"ip -details -oneline address",
	"ip -details -4 route show table all",
	"ip -details -6 route show table all",
	"ip -4 rule",
	"ip -6 rule",
	"nft --stateless list ruleset",
	"iptables-save",
	"ip6tables-save",
}

// changesByItself matches text that differs between two snapshots without a change: lifetimes, counters, ages, time.
var changesByItself = regexp.MustCompile(`(?m)(valid_lft|preferred_lft|expires|age|hello_timer|tcn_timer|` +
	`topology_change_timer|gc_timer|users|\bcache) +\S+|\[\d+:\d+\]|^#.*$`)

// volatileSysctls are read-only state, not settings.
var volatileSysctls = map[string]bool{"net/netfilter/nf_conntrack_count": true}

// RootSnapshot describes the network namespace of the test process: devices, addresses,
// routes, rules, firewall and sysctls. Two snapshots are equal if nothing has changed.
func RootSnapshot(t testing.TB) string {
	t.Helper()
	namespace, err := netns.Current()
	Succeed(t, err)
	defer namespace.Close()
	return Snapshot(t, namespace)
}

// Snapshot describes a network namespace, see [RootSnapshot].
func Snapshot(t testing.TB, ns *netns.Namespace) string {
	t.Helper()
	RequireTool(t, "ip")
	var out strings.Builder
	for _, line := range snapshotCommands {
		name, _, _ := strings.Cut(line, " ")
		if _, err := exec.LookPath(name); err == nil {
			// ip prints this if a namespace of another test, which it finds below /run/netns, vanishes meanwhile.
			text := strings.ReplaceAll(Command(t, ns, line), "Error: Peer netns reference is invalid.\n", "")
			fmt.Fprintf(&out, "# %s\n%s\n", line, changesByItself.ReplaceAllString(text, "*"))
		}
	}
	Succeed(t, ns.Do(func() error { return writeSysctls(&out) }))
	return out.String()
}

func writeSysctls(out *strings.Builder) error {
	// /proc/sys/net depends on the thread that reads it.
	const root = "/proc/sys/"
	return filepath.WalkDir(root+"net", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		key := strings.TrimPrefix(path, root)
		if entry.IsDir() || volatileSysctls[key] {
			return nil
		}
		value, err := os.ReadFile(path)
		if err != nil { // write-only, or without a value yet
			return nil
		}
		fmt.Fprintf(out, "%s=%s", key, value)
		return nil
	})
}

// BPFFS returns a new directory on a BPF file system, which is removed with all pins in it when the test ends. It uses
// /sys/fs/bpf if that is a BPF file system, else it mounts one.
func BPFFS(t testing.TB) string {
	t.Helper()
	RequireRoot(t)
	parent := "/sys/fs/bpf"
	if !isBPFFS(parent) {
		parent = t.TempDir()
		if err := unix.Mount("bpf", parent, "bpf", 0, ""); err != nil {
			t.Fatalf("mount a BPF file system: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(parent, unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", parent, err)
			}
		})
	}
	dir, err := os.MkdirTemp(parent, "mst-test-")
	Succeed(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func isBPFFS(path string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(path, &stat) == nil && stat.Type == unix.BPF_FS_MAGIC
}

// Cgroup creates an empty control group of version 2 and returns its directory. It is removed when the test ends; its
// processes have to end before. The test is skipped without a hierarchy of version 2.
func Cgroup(t testing.TB) string {
	t.Helper()
	RequireRoot(t)
	mounts, err := os.ReadFile("/proc/self/mounts")
	Succeed(t, err)
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != "cgroup2" {
			continue
		}
		path, err := os.MkdirTemp(fields[1], fmt.Sprintf("mst-test-%d-", os.Getpid()))
		Succeed(t, err)
		t.Cleanup(func() {
			Eventually(t, 10*time.Second, func() error { return unix.Rmdir(path) })
		})
		return filepath.Clean(path)
	}
	Skip(t, "needs a cgroup v2 file system")
	return ""
}

// ReadArchive returns the texts of the files in a tar.gz by their names.
func ReadArchive(t testing.TB, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	Succeed(t, err)
	defer file.Close()
	return Unpack(t, file)
}

// Unpack is ReadArchive for a stream.
func Unpack(t testing.TB, from io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(from)
	Succeed(t, err)
	all := map[string]string{}
	for files := tar.NewReader(zip); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		data, failed := io.ReadAll(files)
		if err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		all[header.Name] = string(data)
	}
}
