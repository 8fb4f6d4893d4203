// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

func open(t testing.TB) *Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "net"))
}

func openAt(t testing.TB, dir string) *Store {
	t.Helper()
	return Open(dir)
}

func pod(id string) Owner { return Owner{ContainerID: id, IfName: "eth0"} }

func take(s *Store, o Owner, sets []RangeSet, requested []netip.Addr) ([]Lease, error) {
	leases, err := s.Reserve(o, sets, requested)
	return leases, err
}

// reserve returns the addresses that o got, with a space between them.
//
//revive:disable-next-line:argument-limit // t comes on top of the four of Reserve
func reserve(t testing.TB, s *Store, o Owner, sets []RangeSet, wanted ...string) string {
	t.Helper()
	leases := testkit.Must(take(s, o, sets, addrs(wanted...)))(t)
	for _, l := range leases {
		testkit.Check(t, l.Owner == o, "lease %+v, want it to be of %s", l, o)
	}
	return text(leases)
}

func release(t testing.TB, s *Store, o Owner) {
	t.Helper()
	testkit.Succeed(t, s.Release(o))
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func text(leases []Lease) string {
	var texts []string
	for _, l := range leases {
		texts = append(texts, l.Address.String())
	}
	return strings.Join(texts, " ")
}

func want(t testing.TB, what, got, want string) {
	t.Helper()
	testkit.Check(t, got == want, "%s: %q, want %q", what, got, want)
}

// files lists the store's directory without the cursors.
func files(t testing.TB, s *Store) string {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	testkit.Require(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
	var names []string
	for _, e := range entries {
		if e.Name() != cursorFile {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

func leased(t testing.TB, s *Store) string {
	t.Helper()
	leases := testkit.Must(s.Leases())(t)
	return text(leases)
}

func leasesOf(t testing.TB, s *Store, o Owner) string {
	t.Helper()
	leases := testkit.Must(s.Get(o))(t)
	return text(leases)
}

var dual = parseSets("10.1.0.0/24", "fd00::/64")

func TestReserveAndRelease(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "state", "net"))
	release(t, s, pod("a"))
	want(t, "leases before there is a directory", leased(t, s), "")
	if _, err := os.Stat(s.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading made the directory: %v", err)
	}
	want(t, "a", reserve(t, s, pod("a"), dual), "10.1.0.2 fd00::2")
	want(t, "b", reserve(t, s, pod("b"), dual), "10.1.0.3 fd00::3")
	want(t, "files", files(t, s), "10.1.0.2@a@eth0 10.1.0.3@b@eth0 fd00::2@a@eth0 fd00::3@b@eth0")
	for _, name := range []string{"", "..", cursorFile, "10.1.0.2@a@eth0"} {
		info := testkit.Must(os.Lstat(filepath.Join(s.dir, name)))(t)
		mode := info.Mode().Perm()
		testkit.Check(t, (!info.IsDir() || mode == 0o700) && (info.IsDir() || mode == 0o600), "%q has mode %o", name, mode)
	}
	leases := testkit.Must(s.Get(pod("b")))(t)
	if wanted := []Lease{
		{pod("b"), netip.MustParseAddr("10.1.0.3"), dual[0][0].Subnet, netip.MustParseAddr("10.1.0.1")},
		{pod("b"), netip.MustParseAddr("fd00::3"), dual[1][0].Subnet, netip.MustParseAddr("fd00::1")},
	}; !reflect.DeepEqual(leases, wanted) {
		t.Errorf("b has %+v, want %+v", leases, wanted)
	}
	_, err := take(s, pod("a"), dual, nil)
	testkit.Check(t, errors.Is(err, fs.ErrExist) && strings.Contains(err.Error(), "interface eth0 of container a: "),
		"a second time: %v", err)
	want(t, "another interface of a", reserve(t, s, Owner{"a", "net1"}, dual), "10.1.0.4 fd00::4")
	release(t, s, pod("a"))
	release(t, s, pod("a"))
	want(t, "leases", leased(t, s), "10.1.0.3 10.1.0.4 fd00::3 fd00::4")
	want(t, "an address that was freed rests", reserve(t, s, pod("c"), dual), "10.1.0.5 fd00::5")
}

// TestEarlierBoot has leases of an earlier boot: they are free, and the first writer removes them, damaged or not.
func TestEarlierBoot(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/29 end=10.1.0.3")
	reserve(t, s, pod("a"), sets)
	reserve(t, s, pod("b"), sets)
	testkit.Succeed(t, os.Truncate(s.path("10.1.0.3@b@eth0"), 3))
	s.Boot = "another"
	want(t, "leases after the boot", leased(t, s), "")
	want(t, "the same owner, back again", reserve(t, s, pod("a"), sets), "10.1.0.2")
	want(t, "files", files(t, s), "10.1.0.2@a@eth0")
	want(t, "the other address", reserve(t, s, pod("c"), sets), "10.1.0.3")
	testkit.Succeed(t, os.Remove(s.path(cursorFile)))
	var full *FullError
	_, err := take(s, pod("d"), sets, nil)
	testkit.Check(t, errors.As(err, &full), "without cursors all are free: %v", err)
}

// TestTurn goes round a small range: each address once, and a freed one when its turn comes again.
func TestTurn(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/24 start=10.1.0.10 end=10.1.0.12,10.1.0.0/24 start=10.1.0.50 end=10.1.0.50")
	for _, addr := range []string{"10.1.0.10", "10.1.0.11", "10.1.0.12", "10.1.0.50", "10.1.0.10", "10.1.0.11"} {
		want(t, "in turn", reserve(t, s, pod("a"), sets), addr)
		release(t, s, pod("a"))
	}
	reserve(t, s, pod("long"), sets, "10.1.0.10")
	for _, addr := range []string{"10.1.0.11", "10.1.0.12", "10.1.0.50", "10.1.0.11"} {
		want(t, "in turn, but for one", reserve(t, s, pod("a"), sets), addr)
		release(t, s, pod("a"))
	}
	testkit.Succeed(t, os.WriteFile(s.path(cursorFile), []byte("what?\n"), 0o600))
	want(t, "no turns: from the start", reserve(t, s, pod("d"), sets), "10.1.0.11")
	want(t, "leases stay", leased(t, s), "10.1.0.10 10.1.0.11")
}

func TestFull(t *testing.T) {
	s := open(t)
	sets := parseSets("fd00::/64", "10.1.0.0/24 start=10.1.0.10 end=10.1.0.40,10.1.0.0/24 start=10.1.0.50 end=10.1.0.50")
	for i := range 32 {
		reserve(t, s, pod(fmt.Sprint("p", i)), sets)
	}
	before := files(t, s)
	_, err := take(s, pod("late"), sets, nil)
	var full *FullError
	testkit.Require(t, errors.As(err, &full) && full.InUse == 32 && reflect.DeepEqual(full.Ranges, sets[1]),
		"error %#v", err)
	want(t, "error", err.Error(), "reserve addresses for interface eth0 of container late: "+
		"no free address in 10.1.0.10-10.1.0.40 of 10.1.0.0/24, 10.1.0.50-10.1.0.50 of 10.1.0.0/24: 32 in use")
	err = s.Free(sets)
	testkit.Check(t, errors.As(err, &full), "Free: %v", err)
	want(t, "files after", files(t, s), before)
	release(t, s, pod("p2"))
	testkit.Succeed(t, s.Free(sets))
	want(t, "the only free one", reserve(t, s, pod("late"), sets), "fd00::22 10.1.0.12")
}

func TestWanted(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/24 not=10.1.0.64/26", "fd00::/64")
	want(t, "one of two", reserve(t, s, pod("a"), sets, "fd00::77"), "10.1.0.2 fd00::77")
	want(t, "both, in any order", reserve(t, s, pod("b"), sets, "fd00::99", "::ffff:10.1.0.9"), "10.1.0.9 fd00::99")
	before := files(t, s)
	_, err := take(s, pod("c"), sets, addrs("fd00::77"))
	testkit.Fails(t, err, "fd00::77 is in use by "+pod("a").String())
	for _, out := range []string{
		"10.1.0.1", "10.1.0.0", "10.1.0.255", "10.1.0.70", "10.2.0.1", "fd00::", "fd01::1", "fd00::9%eth0",
	} {
		_, err := take(s, pod("c"), sets, addrs(out))
		testkit.Check(t, err != nil && strings.HasSuffix(err.Error(), out+" is not available in 10.1.0.0/24, fd00::/64"),
			"%s: %v", out, err)
	}
	if _, err := take(s, pod("c"), sets, []netip.Addr{{}}); err == nil {
		t.Error("no address at all can be wanted")
	}
	_, err = take(s, pod("c"), sets, addrs("10.1.0.7", "10.1.0.8"))
	testkit.Fails(t, err, "10.1.0.7 and 10.1.0.8")
	want(t, "files after", files(t, s), before)
}

func TestOwners(t *testing.T) {
	s := open(t)
	long := strings.Repeat("x", maxOwner-len("eth0"))
	want(t, "long ID", reserve(t, s, pod(long), dual), "10.1.0.2 fd00::2")
	want(t, "odd names", reserve(t, s, Owner{"0.._-", "@.é"}, dual), "10.1.0.3 fd00::3")
	release(t, s, Owner{"0.._-", "@.é"})
	want(t, "odd names released", leased(t, s), "10.1.0.2 fd00::2")
	for _, o := range []Owner{
		{}, {"a", ""}, {"", "eth0"}, {"../a", "eth0"}, {"a/b", "eth0"}, {".a", "eth0"}, {"a@b", "eth0"}, {"a b", "eth0"},
		{"a", "."}, {"a", ".."}, {"a", "a/b"}, {"a", "a:b"}, {"a", "a b"}, {"a", "a234567890123456"}, {"a", "a\x00"},
		{long + "x", "eth0"},
	} {
		_, reserved := take(s, o, dual, nil)
		released := s.Release(o)
		for _, err := range []error{reserved, released} {
			testkit.Check(t, err != nil && !strings.Contains(err.Error(), "\n"), "owner %q: %v", o, err)
		}
	}
}

// TestHugeRange is quick only if the search visits leases, not free addresses.
func TestHugeRange(t *testing.T) {
	s := open(t)
	sets := parseSets("fd00::/16 not=fd00::/17 not=fd00:8000::/18")
	want(t, "first", reserve(t, s, pod("a"), sets), "fd00:c000::")
	const last = "fd00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	want(t, "last", reserve(t, s, pod("b"), sets, last), last)
	want(t, "round", reserve(t, s, pod("c"), sets), "fd00:c000::1")
}

// FuzzName parses names of files: it accepts only names that this version or an earlier one writes.
func FuzzName(f *testing.F) {
	for _, name := range []string{"10.1.0.2@a@eth0", "10.1.0.2", "fd00::2@a@b@c", "::%x@a@eth0", "a@eth0",
		cursorFile, newFile} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		l, ok := parseName(name)
		testkit.Check(t, !ok || l.file() == name && l.Address.IsValid() && !strings.Contains(name, "/"), "%q is %+v", name, l)
	})
}
