// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// TestOpenErrors has roots that can't be opened, which must stay as they are.
func TestOpenErrors(t *testing.T) {
	testkit.RequireRoot(t)
	base := testkit.BPFFS(t)
	ours := fmt.Sprintf("v%d", objects.LayoutVersion)
	others := []string{fmt.Sprintf("v%d", objects.LayoutVersion-1), fmt.Sprintf("v%d", objects.LayoutVersion+1)}
	for _, other := range others {
		succeed(t, os.MkdirAll(filepath.Join(base, other, other, "maps"), 0o700))
	}
	for name, open := range openers() {
		t.Run(name, func(t *testing.T) {
			var noFS *objects.BPFFSError
			elsewhere := filepath.Join(t.TempDir(), "root")
			if _, err := open(Options{Root: elsewhere}); !errors.As(err, &noFS) || !strings.Contains(err.Error(), elsewhere) ||
				!strings.Contains(err.Error(), "mount -t bpf") {
				t.Errorf("no bpffs: error %v", err)
			}
			if _, err := os.Stat(elsewhere); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("no bpffs: something was made there: %v", err)
			}
			for _, other := range others {
				var layout *objects.LayoutError
				if _, err := open(Options{Root: filepath.Join(base, other)}); !errors.As(err, &layout) || layout.Found != other ||
					layout.Want != ours || !strings.Contains(err.Error(), other) || !strings.Contains(err.Error(), ours) ||
					!strings.Contains(err.Error(), "mustang reset") || strings.Contains(err.Error(), "\n") {
					t.Errorf("layout %s: error %v", other, err)
				}
				if _, err := os.Stat(filepath.Join(base, other, ours)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("layout %s: something was made there: %v", other, err)
				}
			}
			succeed(t, syscall.Seteuid(65534))
			_, err := open(Options{Root: filepath.Join(base, "mine")})
			succeed(t, syscall.Seteuid(0))
			if !errors.Is(err, objects.ErrNotRoot) {
				t.Errorf("not root: error %v", err)
			}
		})
	}
	for _, other := range others { // as the error says
		if err := objects.Remove(t.Context(), filepath.Join(base, other)); err != nil {
			t.Error(err)
		}
		openSized(t, Options{Root: filepath.Join(base, other)})
	}
	if _, err := OpenExisting(Options{Root: filepath.Join(base, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: error %v", err)
	}
	if err := objects.Remove(t.Context(), t.TempDir()); err == nil {
		t.Error("Remove took a directory on another file system")
	}
}

// TestPrivate wants nobody else to look into the root.
func TestPrivate(t *testing.T) {
	d := openTest(t)
	for _, dir := range []string{d.objects.Root(), pins(d), pins(d, "maps"), pins(d, "progs"), pins(d, "links")} {
		info := must(os.Stat(dir))(t)
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v", dir, info.Mode())
		}
	}
}

// TestUnsupported wants the feature and the version in the message.
func TestUnsupported(t *testing.T) {
	err := error(&objects.UnsupportedError{Feature: "tcx", Kernel: "6.6", Err: syscall.EINVAL})
	if !strings.Contains(err.Error(), "tcx") || !strings.Contains(err.Error(), "6.6") || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("error %v", err)
	}
	err = &objects.UnsupportedError{Feature: "netkit", Kernel: "6.7", Option: "CONFIG_NETKIT", Err: syscall.EINVAL}
	if err.Error() != "this kernel is built without CONFIG_NETKIT" {
		t.Errorf("error %v", err)
	}
}

// TestCounterNames compares the names in Go with those in the type information.
func TestCounterNames(t *testing.T) {
	spec := must(ebpf.LoadCollectionSpec("objects/tc_bpfel.o"))(t)
	for enum, names := range map[string][][2]string{"metric": flows.Metrics(), "drop_reason": flows.Drops()} {
		var values *btf.Enum
		succeed(t, spec.Types.TypeByName(enum, &values))
		prefix, _, _ := strings.Cut(enum, "_")
		names = append(names, [2]string{"count", "unused"})
		if len(values.Values) != len(names) {
			t.Fatalf("enum %s has %d values, and Go %d names", enum, len(values.Values), len(names))
		}
		for i, value := range values.Values {
			if want := strings.ToUpper(prefix + "_" + names[i][0]); value.Value != uint64(i) || value.Name != want || i > 0 && names[i][1] == "" {
				t.Errorf("enum %s: value %d is %s, want %s", enum, value.Value, value.Name, want)
			}
		}
	}
}
