// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

var two = parseSets("10.1.0.0/29 end=10.1.0.3")

// TestEarlierBoot: a reboot frees all, whoever comes first clears up, and no address is lost.
func TestEarlierBoot(t *testing.T) {
	s := open(t)
	reserve(t, s, pod("a"), two)
	reserve(t, s, pod("b"), two)
	s.Boot = "another"
	want(t, "leases after the boot", leased(t, s), "")
	if leases, err := s.Get(pod("a")); err != nil || leases != nil {
		t.Errorf("a has %v, %v", leases, err)
	}
	want(t, "the same owner, back again", reserve(t, s, pod("a"), two), "10.1.0.2")
	want(t, "files", files(t, s), "10.1.0.2 a@eth0")
	want(t, "the other address", reserve(t, s, pod("c"), two), "10.1.0.3")

	s.Boot = "third"
	want(t, "release of an earlier boot's", release(t, s, pod("a")), "10.1.0.2")
	want(t, "files", files(t, s), "10.1.0.3 c@eth0")
	if freed, err := s.Keep(anyOwner); err != nil || len(freed) != 0 {
		t.Errorf("keep: %v, %v", freed, err)
	}
	want(t, "files after keep", files(t, s), "")
}

// TestStaleAmongLive has a lease of another boot come in later, as from a backup.
func TestStaleAmongLive(t *testing.T) {
	s := open(t)
	reserve(t, s, pod("a"), two)
	old := *s
	old.Boot = "another"
	publish := func() {
		t.Helper()
		pools, err := preparePools(two, addrs("10.1.0.3"))
		if err != nil {
			t.Fatal(err)
		}
		file, err := old.publish(record{old.Boot, pod("old"), []Lease{pools[0].lease(pod("old"), addrs("10.1.0.3")[0])}})
		if err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
	}
	publish()
	want(t, "wanted", reserve(t, s, pod("b"), two, "10.1.0.3"), "10.1.0.3")
	release(t, s, pod("b"))
	release(t, s, pod("old"))
	publish()
	want(t, "the only one", reserve(t, s, pod("b"), two), "10.1.0.3")
	release(t, s, pod("b"))
	publish()
	want(t, "its owner", reserve(t, s, pod("old"), two), "10.1.0.3")
}

// TestBroken has files that a crash can leave, under an address and under an owner's name.
func TestBroken(t *testing.T) {
	whole := record{Boot: "x", Owner: pod("b"), Leases: []Lease{{Address: addrs("10.1.0.9")[0]}}}.marshal()
	for name, content := range map[string]string{
		"empty":           "",
		"cut short":       string(whole[:len(whole)/2]),
		"zeros":           strings.Repeat("\x00", 4096),
		"not ours":        "3f2a9c\neth0",
		"another's":       string(whole),
		"no owner":        `{"boot":"x","leases":[{"address":"10.1.0.3"}]}`,
		"owner elsewhere": `{"boot":"x","container":"../..","interface":"eth0","leases":[{"address":"10.1.0.3"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			reserve(t, s, pod("a"), two)
			damage := func() {
				t.Helper()
				for _, file := range []string{"10.1.0.3", "c@eth0"} {
					if err := os.WriteFile(s.path(file), []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			damage()
			want(t, "leases", leased(t, s), "10.1.0.2")
			want(t, "wanted", reserve(t, s, pod("c"), two, "10.1.0.3"), "10.1.0.3")
			damage() // both are one file
			want(t, "release", release(t, s, pod("c")), "")
			want(t, "files", files(t, s), "10.1.0.2 a@eth0")
			damage()
			want(t, "in turn", reserve(t, s, pod("d"), two), "10.1.0.3")
			release(t, s, pod("d"))
			damage()
			if freed, err := s.Keep(anyOwner); err != nil || len(freed) != 0 {
				t.Errorf("keep: %v, %v", freed, err)
			}
			want(t, "files", files(t, s), "10.1.0.2 a@eth0")
		})
	}
}

// TestForeign: what cannot be ours stays, and an address of that name is not given out.
func TestForeign(t *testing.T) {
	s := open(t)
	reserve(t, s, pod("a"), two)
	release(t, s, pod("a"))
	for _, make := range []func() error{
		func() error { return os.Mkdir(s.path("10.1.0.3"), 0o700) },
		func() error { return os.Symlink("/etc/passwd", s.path("x@eth0")) },
		func() error { return unix.Mkfifo(s.path("y@eth0"), 0o600) },
		func() error { return os.WriteFile(s.path("lock"), nil, 0o600) },
		func() error { return os.WriteFile(s.path("fd00:0::1"), nil, 0o600) }, // not as we write it
		func() error {
			socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path("z@eth0")})
			if err == nil {
				socket.SetUnlinkOnClose(false)
				err = socket.Close()
			}
			return err
		},
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
	}
	const all = "10.1.0.3 fd00:0::1 lock x@eth0 y@eth0 z@eth0"
	want(t, "leases", leased(t, s), "")
	want(t, "the other", reserve(t, s, pod("b"), two), "10.1.0.2")
	var full *FullError
	if _, err := s.Reserve(pod("c"), two, nil); !errors.As(err, &full) {
		t.Errorf("no more: %v", err)
	}
	if _, err := s.Reserve(pod("c"), two, addrs("10.1.0.3")); !errors.Is(err, errForeign) {
		t.Errorf("wanted: %v", err)
	}
	release(t, s, pod("b"))
	for _, id := range []string{"x", "y", "z"} {
		want(t, "release", release(t, s, pod(id)), "")
		if _, err := s.Reserve(pod(id), two, nil); !errors.Is(err, errForeign) {
			t.Errorf("owner %s: %v", id, err)
		}
	}
	if _, err := s.Keep(func(Owner) bool { return false }); err != nil {
		t.Error(err)
	}
	want(t, "files", files(t, s), all)
}

// smallDisk mounts a tmpfs of one page for files and so many inodes, and returns a store on it.
func smallDisk(t *testing.T, options string) *Store {
	t.Helper()
	testkit.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("ipam-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return openAt(t, dir+"/net")
}

// TestFullDisk fills a disk by leases, by its space and by its inodes: an error, nothing half done, and what is there
// can be released.
func TestFullDisk(t *testing.T) {
	for _, options := range []string{"size=20k,nr_inodes=1000", "size=1m,nr_inodes=14"} {
		s := smallDisk(t, options)
		var held []Owner
		before := ""
		for {
			o := pod("p" + string(rune('a'+len(held))))
			if len(held) > 20 {
				t.Fatalf("%s: not full after %v", options, held)
			}
			_, err := s.Reserve(o, dual, nil)
			if err == nil {
				held, before = append(held, o), files(t, s)
				continue
			}
			if !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", options, err)
			}
			want(t, "files after the error", files(t, s), before)
			break
		}
		if len(held) == 0 {
			t.Errorf("%s: no room for one", options)
		}
		for _, o := range held {
			release(t, s, o)
		}
		want(t, "files at last", files(t, s), "")
	}
}

func TestReadOnlyDisk(t *testing.T) {
	s := smallDisk(t, "size=1m")
	reserve(t, s, pod("a"), dual)
	before := files(t, s)
	if err := unix.Mount("", s.path(".."), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, reserved := s.Reserve(pod("b"), dual, nil)
	_, released := s.Release(pod("a"))
	_, kept := s.Keep(func(Owner) bool { return false })
	_, elsewhere := openAt(t, s.dir+"2").Reserve(pod("b"), dual, nil)
	for _, err := range []error{reserved, released, kept, elsewhere} {
		if !errors.Is(err, unix.EROFS) || strings.Contains(err.Error(), "\n") {
			t.Errorf("read-only disk: %v", err)
		}
	}
	want(t, "files", files(t, s), before)
	want(t, "leases", leased(t, s), "10.1.0.2 fd00::2")
	want(t, "release of nothing", release(t, openAt(t, s.dir+"2"), pod("a")), "")
}
