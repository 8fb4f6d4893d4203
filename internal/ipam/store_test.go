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
	"slices"
	"strings"
	"testing"
)

func open(t testing.TB) *Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "net"))
}

func openAt(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func pod(id string) Owner { return Owner{ContainerID: id, IfName: "eth0"} }

// reserve returns the addresses that o got, with a space between them.
//
//revive:disable-next-line:argument-limit // t comes on top of the four of Reserve
func reserve(t testing.TB, s *Store, o Owner, sets []RangeSet, wanted ...string) string {
	t.Helper()
	leases, err := s.Reserve(o, sets, addrs(wanted...))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		if l.Owner != o {
			t.Errorf("lease %+v, want it to be of %s", l, o)
		}
	}
	return text(addressesOf(leases))
}

func release(t testing.TB, s *Store, o Owner) string {
	t.Helper()
	freed, err := s.Release(o)
	if err != nil {
		t.Fatal(err)
	}
	return text(freed)
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func text(list []netip.Addr) string {
	var texts []string
	for _, addr := range list {
		texts = append(texts, addr.String())
	}
	return strings.Join(texts, " ")
}

func want(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// files lists the store's directory without the cursors.
func files(t testing.TB, s *Store) string {
	t.Helper()
	names, err := s.names()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == cursorFile })
	slices.Sort(names)
	return strings.Join(names, " ")
}

func leased(t testing.TB, s *Store) string {
	t.Helper()
	leases, err := s.Leases()
	if err != nil {
		t.Fatal(err)
	}
	return text(addressesOf(leases))
}

var dual = parseSets("10.1.0.0/24", "fd00::/64")

func TestReserveAndRelease(t *testing.T) {
	s := open(t)
	want(t, "release before there is a directory", release(t, s, pod("a")), "")
	want(t, "leases before there is a directory", leased(t, s), "")
	if freed, err := s.Keep(anyOwner); err != nil || freed != nil {
		t.Errorf("keep before there is a directory: %v, %v", freed, err)
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading made the directory: %v", err)
	}

	want(t, "a", reserve(t, s, pod("a"), dual), "10.1.0.2 fd00::2")
	want(t, "b", reserve(t, s, pod("b"), dual), "10.1.0.3 fd00::3")
	want(t, "files", files(t, s), "10.1.0.2 10.1.0.3 a@eth0 b@eth0 fd00::2 fd00::3")
	leases, err := s.Get(pod("b"))
	if err != nil {
		t.Fatal(err)
	}
	if wanted := []Lease{
		{pod("b"), netip.MustParseAddr("10.1.0.3"), dual[0][0].Subnet, netip.MustParseAddr("10.1.0.1")},
		{pod("b"), netip.MustParseAddr("fd00::3"), dual[1][0].Subnet, netip.MustParseAddr("fd00::1")},
	}; !reflect.DeepEqual(leases, wanted) {
		t.Errorf("b has %+v, want %+v", leases, wanted)
	}
	want(t, "leases", leased(t, s), "10.1.0.2 10.1.0.3 fd00::2 fd00::3")

	_, err = s.Reserve(pod("a"), dual, nil)
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "interface eth0 of container a: 10.1.0.2, fd00::2 already reserved") {
		t.Errorf("a second time: %v", err)
	}
	want(t, "another interface of a", reserve(t, s, Owner{"a", "net1"}, dual), "10.1.0.4 fd00::4")

	want(t, "release a", release(t, s, pod("a")), "10.1.0.2 fd00::2")
	want(t, "release a again", release(t, s, pod("a")), "")
	want(t, "files", files(t, s), "10.1.0.3 10.1.0.4 a@net1 b@eth0 fd00::3 fd00::4")
	if leases, err := s.Get(pod("a")); err != nil || leases != nil {
		t.Errorf("a has %v, %v", leases, err)
	}
	want(t, "an address that was freed rests", reserve(t, s, pod("c"), dual), "10.1.0.5 fd00::5")
}

func TestModes(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "state", "net"))
	reserve(t, s, pod("a"), dual)
	for _, name := range []string{"", "..", cursorFile, "a@eth0", "10.1.0.2"} {
		info, err := os.Lstat(filepath.Join(s.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); info.IsDir() && mode != 0o700 || !info.IsDir() && mode != 0o600 {
			t.Errorf("%q has mode %o", name, mode)
		}
	}
}

// TestTurn goes round a small range: each address once, and a freed one when its turn comes again.
func TestTurn(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/24 start=10.1.0.10 end=10.1.0.12,10.2.0.0/24 start=10.2.0.5 end=10.2.0.5")
	for _, addr := range []string{"10.1.0.10", "10.1.0.11", "10.1.0.12", "10.2.0.5", "10.1.0.10", "10.1.0.11"} {
		want(t, "in turn", reserve(t, s, pod("a"), sets), addr)
		release(t, s, pod("a"))
	}
	reserve(t, s, pod("long"), sets, "10.1.0.10")
	for _, addr := range []string{"10.1.0.11", "10.1.0.12", "10.2.0.5", "10.1.0.11"} {
		want(t, "in turn, but for one", reserve(t, s, pod("a"), sets), addr)
		release(t, s, pod("a"))
	}
	want(t, "sets side by side have their own turns", reserve(t, s, pod("b"), parseSets("10.9.0.0/24")), "10.9.0.2")
	want(t, "back to the first", reserve(t, s, pod("c"), sets), "10.1.0.12")
	if err := os.WriteFile(s.path(cursorFile), []byte("what?\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, "no turns: from the start", reserve(t, s, pod("d"), sets), "10.1.0.11")
	want(t, "leases stay", leased(t, s), "10.1.0.10 10.1.0.11 10.1.0.12 10.9.0.2")
}

func TestManySetsOfTurns(t *testing.T) {
	s := open(t)
	for i := range 2 * maxLines {
		addr := netip.AddrFrom4([4]byte{10, byte(i), 0, 0})
		sets := []RangeSet{{{Subnet: netip.PrefixFrom(addr, 24)}}}
		reserve(t, s, pod("a"), sets)
		release(t, s, pod("a"))
	}
	info, err := os.Stat(s.path(cursorFile))
	if err != nil {
		t.Fatal(err)
	}
	if size := info.Size(); size > int64(os.Getpagesize()) || size != int64((1+maxLines)*(1+lineWidth)) {
		t.Errorf("%d bytes of turns", size)
	}
}

func TestFull(t *testing.T) {
	s := open(t)
	sets := parseSets("fd00::/64", "10.1.0.0/24 start=10.1.0.10 end=10.1.0.40,10.2.0.0/30")
	for i := range 32 {
		reserve(t, s, pod(fmt.Sprint("p", i)), sets)
	}
	before := files(t, s)
	_, err := s.Reserve(pod("late"), sets, nil)
	var full *FullError
	if !errors.As(err, &full) || full.InUse != 32 || !reflect.DeepEqual(full.Ranges, sets[1]) {
		t.Fatalf("error %#v", err)
	}
	want(t, "error", err.Error(), "reserve addresses for interface eth0 of container late: "+
		"no free address in 10.1.0.10-10.1.0.40 of 10.1.0.0/24, 10.2.0.0/30: 32 in use")
	want(t, "files after", files(t, s), before)
	want(t, "freed", release(t, s, pod("p2")), "fd00::4 10.1.0.12")
	want(t, "the only free one, behind more than are probed", reserve(t, s, pod("late"), sets), "fd00::22 10.1.0.12")
}

func TestWanted(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/24 not=10.1.0.64/26", "fd00::/64")
	want(t, "one of two", reserve(t, s, pod("a"), sets, "fd00::77"), "10.1.0.2 fd00::77")
	want(t, "both, in any order", reserve(t, s, pod("b"), sets, "fd00::99", "::ffff:10.1.0.9"), "10.1.0.9 fd00::99")
	before := files(t, s)
	_, err := s.Reserve(pod("c"), sets, addrs("fd00::77"))
	if err == nil || !strings.Contains(err.Error(), "fd00::77 is in use by "+pod("a").String()) {
		t.Errorf("taken: %v", err)
	}
	for _, out := range []string{
		"10.1.0.1", "10.1.0.0", "10.1.0.255", "10.1.0.70", "10.2.0.1", "fd00::", "fd01::1", "fd00::9%eth0",
	} {
		_, err := s.Reserve(pod("c"), sets, addrs(out))
		if err == nil || !strings.HasSuffix(err.Error(), out+" is not available in 10.1.0.0/24, fd00::/64") {
			t.Errorf("%s: %v", out, err)
		}
	}
	if _, err := s.Reserve(pod("c"), sets, []netip.Addr{{}}); err == nil {
		t.Error("no address at all can be wanted")
	}
	_, err = s.Reserve(pod("c"), sets, addrs("10.1.0.7", "10.1.0.8"))
	if err == nil || !strings.Contains(err.Error(), "10.1.0.7 and 10.1.0.8") {
		t.Errorf("two of one set: %v", err)
	}
	want(t, "files after", files(t, s), before)
}

func TestOwners(t *testing.T) {
	s := open(t)
	long := strings.Repeat("x", maxName-len("@eth0"))
	want(t, "long ID", reserve(t, s, pod(long), dual), "10.1.0.2 fd00::2")
	want(t, "odd names", reserve(t, s, Owner{"0.._-", "@.é"}, dual), "10.1.0.3 fd00::3")
	want(t, "odd names freed", release(t, s, Owner{"0.._-", "@.é"}), "10.1.0.3 fd00::3")
	for _, o := range []Owner{
		{}, {"a", ""}, {"", "eth0"}, {"../a", "eth0"}, {"a/b", "eth0"}, {".a", "eth0"}, {"a@b", "eth0"}, {"a b", "eth0"},
		{"a", "."}, {"a", ".."}, {"a", "a/b"}, {"a", "a:b"}, {"a", "a b"}, {"a", "a234567890123456"}, {"a", "a\x00"},
		{long + "x", "eth0"},
	} {
		_, reserved := s.Reserve(o, dual, nil)
		_, released := s.Release(o)
		_, got := s.Get(o)
		for _, err := range []error{reserved, released, got} {
			if err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("owner %q: %v", o, err)
			}
		}
	}
}

func TestKeep(t *testing.T) {
	s := open(t)
	for _, id := range []string{"d", "c", "b", "a"} {
		reserve(t, s, pod(id), dual)
	}
	reserve(t, s, Owner{"a", "net1"}, dual)
	freed, err := s.Keep(func(o Owner) bool { return o.ContainerID == "b" || o.IfName == "net1" })
	if err != nil || !reflect.DeepEqual(freed, []Owner{pod("a"), pod("c"), pod("d")}) {
		t.Errorf("freed %v, %v", freed, err)
	}
	want(t, "files", files(t, s), "10.1.0.4 10.1.0.6 a@net1 b@eth0 fd00::4 fd00::6")
	if freed, err := s.Keep(anyOwner); err != nil || len(freed) != 0 {
		t.Errorf("freed %v, %v", freed, err)
	}
}

// TestHugeRange has no way to be quick but to look only at what is there.
func TestHugeRange(t *testing.T) {
	s := open(t)
	sets := parseSets("fd00::/16 not=fd00::/17 not=fd00:8000::/18")
	want(t, "first", reserve(t, s, pod("a"), sets), "fd00:c000::")
	const last = "fd00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	want(t, "last", reserve(t, s, pod("b"), sets, last), last)
	want(t, "round", reserve(t, s, pod("c"), sets), "fd00:c000::1")
}

// TestFreeBeforeAndAfter looks for a free address before and after the only one is reserved.
func TestFreeBeforeAndAfter(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/30", "fd00::/64")
	if err := s.Free(sets); err != nil {
		t.Fatal(err)
	}
	owner := Owner{ContainerID: "a", IfName: "eth0"}
	if _, err := s.Reserve(owner, sets, nil); err != nil {
		t.Fatal(err)
	}
	var full *FullError
	if err := s.Free(sets); !errors.As(err, &full) || full.InUse == 0 {
		t.Errorf("the only address of 10.1.0.0/30 is reserved, and Free returns %v", err)
	}
	if _, err := s.Release(owner); err != nil {
		t.Fatal(err)
	}
	if err := s.Free(sets); err != nil {
		t.Error(err)
	}
}
