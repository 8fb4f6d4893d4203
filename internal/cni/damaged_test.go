// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// oddities put something in the place of a file, or of one that is there for a moment.
var oddities = map[string]func(path string) error{
	"cut short":     func(path string) error { return os.WriteFile(path, []byte(`[{"Key":"net/ipv4/ip_f`), 0o600) },
	"empty":         func(path string) error { return os.WriteFile(path, nil, 0o600) },
	"a named pipe":  func(path string) error { return unix.Mkfifo(path, 0o600) },
	"a directory":   func(path string) error { return os.MkdirAll(filepath.Join(path, "more"), 0o700) },
	"a broken link": func(path string) error { return os.Symlink("/nowhere", path) },
}

// odd puts something in the place of a file.
func (f *fixture) odd(name, path string) {
	f.t.Helper()
	f.must(os.RemoveAll(path))
	f.must(oddities[name](path))
}

// TestOddFiles puts something in the place of a network's record and of what it is written to first: pods come and go.
func TestOddFiles(t *testing.T) {
	for name := range oddities {
		for _, file := range []string{"network.json", "network.json.new"} {
			t.Run(name+" for "+file, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				config := network("net", "veth", "")
				p := f.added("a", config)
				f.odd(name, filepath.Join(f.plugin.RunDir, "net", file))
				q := f.pod("b", network("net", "veth", `,"mtu":1400`))
				added := make(chan error, 1)
				go func() { added <- f.add(q) }()
				select {
				case err := <-added:
					f.must(err)
				case <-time.After(20 * time.Second):
					t.Fatal("ADD hangs")
				}
				f.must(f.check(q))
				f.must(f.del(p))
				f.must(f.del(q))
			})
		}
	}
}

// TestImpossibleGateways has a network's record name addresses that no device can have: it counts as none, and pods come and go.
func TestImpossibleGateways(t *testing.T) {
	for _, more := range []string{
		`"gateways":[""]`, `"gateways":["10.113.0.1/24",""]`, `"gateways":["::ffff:1.2.3.4/100"]`, `"gateways":["fe80::1%eth0/64"]`, `"routers":[""]`,
	} {
		t.Run(more, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			config := network("net", "bridge", "")
			p := f.added("a", config)
			path := filepath.Join(f.plugin.RunDir, "net", "network.json")
			data, err := os.ReadFile(path)
			f.must(err)
			f.must(os.WriteFile(path, append(bytes.TrimSuffix(bytes.TrimSpace(data), []byte("}")), ","+more+"}"...), 0o600))
			f.must(f.del(f.added("c", config)))
			f.must(os.WriteFile(path, append(bytes.TrimSuffix(bytes.TrimSpace(data), []byte("}")), ","+more+"}"...), 0o600))
			f.must(f.plugin.RetireGateways(f.host, "net", []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}))
			q := f.added("b", moved(config, "113", "114"))
			f.must(f.check(q))
			f.must(f.del(p))
			f.must(f.del(q))
		})
	}
}
