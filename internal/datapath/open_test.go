// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf/btf"

	"mustang/internal/lb"
	"mustang/internal/testkit"
)

// TestOpenErrors has roots that can't be opened, which must stay as they are.
func TestOpenErrors(t *testing.T) {
	testkit.RequireRoot(t)
	base := testkit.BPFFS(t)
	later := filepath.Join(base, "later")
	if err := os.MkdirAll(filepath.Join(later, "v4", "maps"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func(Options) (*Datapath, error){"Open": Open, "OpenExisting": OpenExisting} {
		t.Run(name, func(t *testing.T) {
			var noFS *BPFFSError
			elsewhere := filepath.Join(t.TempDir(), "root")
			if _, err := open(Options{Root: elsewhere}); !errors.As(err, &noFS) || !strings.Contains(err.Error(), elsewhere) ||
				!strings.Contains(err.Error(), "mount -t bpf") {
				t.Errorf("no bpffs: error %v", err)
			}
			if _, err := os.Stat(elsewhere); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("no bpffs: something was made there: %v", err)
			}
			var layout *LayoutError
			if _, err := open(Options{Root: later}); !errors.As(err, &layout) || layout.Found != "v4" || layout.Want != "v3" {
				t.Errorf("another layout: error %v", err)
			}
			if _, err := os.Stat(filepath.Join(later, "v3")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("another layout: something was made there: %v", err)
			}
			if err := syscall.Seteuid(65534); err != nil {
				t.Fatal(err)
			}
			_, err := open(Options{Root: filepath.Join(base, "mine")})
			if err := syscall.Seteuid(0); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(err, ErrNotRoot) {
				t.Errorf("not root: error %v", err)
			}
		})
	}
	if _, err := OpenExisting(Options{Root: filepath.Join(base, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: error %v", err)
	}
	if err := Remove(t.TempDir()); err == nil {
		t.Error("Remove took a directory on another file system")
	}
}

// TestPrivate wants nobody else to look into the root.
func TestPrivate(t *testing.T) {
	d := openTest(t)
	for _, dir := range []string{d.layout.root, d.layout.version(), d.layout.maps(), d.layout.programs(), d.layout.links()} {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v", dir, info.Mode())
		}
	}
}

// TestUnsupported wants the feature and the version in the message.
func TestUnsupported(t *testing.T) {
	err := error(&UnsupportedError{Feature: "tcx", Kernel: "6.6", Err: syscall.EINVAL})
	if !strings.Contains(err.Error(), "tcx") || !strings.Contains(err.Error(), "6.6") || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("error %v", err)
	}
}

// TestCounterNames compares the names in Go with the programs' own.
func TestCounterNames(t *testing.T) {
	spec, err := loadMustang()
	if err != nil {
		t.Fatal(err)
	}
	var metric *btf.Enum
	if err := spec.Types.TypeByName("metric", &metric); err != nil {
		t.Fatal(err)
	}
	names := append(counterNames(), "count")
	if len(metric.Values) != len(names) {
		t.Fatalf("%d metrics, %d names", len(metric.Values), len(names))
	}
	for i, value := range metric.Values {
		if want := strings.ToLower(strings.TrimPrefix(value.Name, "METRIC_")); value.Value != uint64(i) || names[i] != want {
			t.Errorf("metric %d is %s, and its name %q", value.Value, value.Name, names[i])
		}
	}
}

// TestFirstCall has each method be the first that needs the tables.
func TestFirstCall(t *testing.T) {
	n, made := routed(t), openTest(t)
	n.attachBoth(t, made)
	n.wire(t)
	frontend := netip.MustParseAddrPort("10.96.0.1:80")
	s := lb.Service{Frontend: frontend, Protocol: lb.TCP, Backends: []netip.AddrPort{netip.MustParseAddrPort(podA4 + ":80")}}
	var endpoints []Endpoint
	for _, call := range []struct {
		name string
		do   func(*Datapath) error
	}{
		{"Counters", func(d *Datapath) error { _, err := d.Counters(); return err }},
		{"Connections", func(d *Datapath) error { _, err := d.Connections(); return err }},
		{"PutService", func(d *Datapath) error { _, _, err := d.PutService(s); return err }},
		{"Service", func(d *Datapath) error { _, err := d.Service(frontend, lb.TCP); return err }},
		{"Services", func(d *Datapath) error { _, err := d.Services(); return err }},
		{"DeleteService", func(d *Datapath) error { return d.DeleteService(frontend, lb.TCP) }},
		{"Endpoints", func(d *Datapath) (err error) { endpoints, err = d.Endpoints(); return err }},
		{"CheckEndpoint", func(d *Datapath) error { return d.CheckEndpoint(n.attachment(0)) }},
		{"Sweep", func(d *Datapath) error { return d.Sweep(func(uint64) bool { return false }) }},
		{"DeleteEndpointIP", func(d *Datapath) error { return d.DeleteEndpointIP(endpoints[0].IP) }},
		{"AddEndpoint", func(d *Datapath) error { _, _, err := d.AddEndpoint(n.attachment(0)); return err }},
		{"AddUplink", func(d *Datapath) error { _, err := d.AddUplink(n.host, "wire"); return err }},
		{"AttachSocket", func(d *Datapath) error { _, err := d.AttachSocket(testkit.Cgroup(t)); return err }},
		{"AddSocketPod", func(d *Datapath) error { _, err := d.AddSocketPod(n.host); return err }},
	} {
		d, err := OpenExisting(Options{Root: made.layout.root})
		if err != nil {
			t.Fatal(err)
		}
		if err := call.do(d); err != nil {
			t.Errorf("%s: %v", call.name, err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("close after %s: %v", call.name, err)
		}
	}
}
