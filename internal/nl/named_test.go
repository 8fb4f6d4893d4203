// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestNameNamespace names a namespace that has none, as that of a process.
func TestNameNamespace(t *testing.T) {
	first := testkit.Namespace(t, "first")
	name := first.Name() + "-again"
	named, err := nl.NameNamespace(first.Path(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	defer nl.DeleteNamespace(name)
	if named.Path() != filepath.Join(nl.Directory, name) {
		t.Errorf("path %s", named.Path())
	}
	opened, err := nl.OpenNamespace(named.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	for _, ns := range []*nl.Namespace{named, opened} {
		want, _ := first.Inode()
		if got, err := ns.Inode(); err != nil || got != want {
			t.Errorf("inode %d, %v; want %d", got, err, want)
		}
	}
	if _, err := nl.NameNamespace(first.Path(), name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name that is taken: %v", err)
	}
	if _, err := nl.NameNamespace("/proc/self/ns/mnt", name+"-other"); err == nil {
		t.Error("named what is no network namespace")
	}
	if left, err := nl.ListNamespaces(name + "-other"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}
