// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"net/netip"
	"os"
	"reflect"
	"syscall"
	"testing"
)

// FuzzParseRecord parses records under several file names. A record that is accepted belongs to its name and survives
// another round.
func FuzzParseRecord(f *testing.F) {
	r := record{"boot", pod("a"), []Lease{{Address: netip.MustParseAddr("10.1.0.2"), Subnet: netip.MustParsePrefix("10.1.0.0/24")}}}
	f.Add("a@eth0", r.marshal())
	f.Add("10.1.0.2", r.marshal())
	f.Add("a@eth0", r.marshal()[:20])
	f.Add("../a@eth0", []byte(`{"boot":"x","container":"../a","interface":"eth0","leases":[{"address":"::"}]}`))
	f.Add("b@eth0", []byte("{}\n{}"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		r, err := parseRecord(name, data)
		if err != nil {
			return
		}
		if r.validate() != nil || !r.matches(name) {
			t.Fatalf("%q: accepted %+v", name, r)
		}
		again, err := parseRecord(name, r.marshal())
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v, written and read: %+v, %v", r, again, err)
		}
	})
}

// FuzzParseCursors parses cursor files. What is written back has at most a page.
func FuzzParseCursors(f *testing.F) {
	f.Add([]byte("boot\n10.1.0.2\nfd00::2\n"))
	f.Add([]byte("\x00"))
	f.Add([]byte("boot fe80::1%a-zone-with-a-name-that-is-longer-than-a-line"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := parseCursors(data)
		if len(c.addrs) > maxLines {
			t.Fatalf("%d addresses", len(c.addrs))
		}
		again := parseCursors(c.marshal())
		if c.boot != "" && !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v, written and read: %+v", c, again)
		}
	})
}

// FuzzStore reserves and releases in a directory with a file of any name and content.
func FuzzStore(f *testing.F) {
	f.Add("a@eth0", []byte("half a rec"))
	f.Add("10.1.0.2", []byte("{}"))
	f.Add(cursorFile, []byte("boot\n10.1.0.9"))
	f.Add(newFile, []byte("x"))
	f.Add("::%\x00", []byte("x"))
	f.Add("::%/x", []byte("x"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		if kindOf(name) == foreignFile && name != cursorFile {
			return
		}
		s := open(t)
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.path(name), data, 0o600); errors.Is(err, syscall.ENAMETOOLONG) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Release(pod("a")); err != nil {
			t.Fatal(err)
		}
		leases, err := s.Reserve(pod("a"), parseSets("10.1.0.0/24"), nil)
		if err != nil || len(leases) != 1 {
			t.Fatalf("%v, %v", leases, err)
		}
	})
}
