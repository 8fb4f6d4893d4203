// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// names lists the entries of an archive, with what links point to.
func names(t *testing.T, archive io.Reader) (all []string) {
	t.Helper()
	for files := tar.NewReader(archive); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.TrimSuffix(header.Name+" "+header.Linkname, " "))
	}
}

// TestAddPackage has a package with files in directories that are links in the image, and with files that no program needs.
func TestAddPackage(t *testing.T) {
	var deb, out bytes.Buffer
	source := layer{tar.NewWriter(&deb), map[string]bool{}}
	for _, name := range []string{"./bin/bash", "./usr/bin/bash", "./lib/x/libc.so", "./usr/share/doc/bash/README", "./etc/profile"} {
		if err := source.file(name, 0o755, []byte("text")); err != nil {
			t.Fatal(err)
		}
	}
	l := layer{tar.NewWriter(&out), map[string]bool{}}
	if err := errors.Join(source.Close(), l.addPackage(tar.NewReader(&deb)), l.link("usr/bin/sh", "bash"), l.link("usr/bin/bash", "other"), l.Close()); err != nil {
		t.Fatal(err)
	}
	want := []string{"usr/bin/bash", "usr/lib/x/libc.so", "etc/profile", "usr/bin/sh bash"}
	if diff := cmp.Diff(want, names(t, &out)); diff != "" {
		t.Error(diff)
	}
}

// TestPack packs two images of one layer.
func TestPack(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("layer"); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "archive")
	if err := pack(archive, file, []image{{tags: []string{"a:1"}, config: map[string]any{"User": "1"}}, {tags: []string{"b:1"}}}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, bytes.NewReader(data)); len(got) != 4 || got[0] == got[1] || got[2] != "manifest.json" || got[3] != "layer.tar" {
		t.Errorf("the archive has %q", got)
	}
	if !bytes.Contains(data, []byte(`"RepoTags":["a:1"]`)) || !bytes.Contains(data, []byte(`"User":"1"`)) {
		t.Error("names or settings are missing")
	}
}

// TestDigest gives sources that differ other names.
func TestDigest(t *testing.T) {
	dir := t.TempDir()
	if _, err := digestOf(dir); err == nil {
		t.Error("no modules, and no error")
	}
	put := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if name == "kubernetes/go.mod" {
			return ""
		}
		digest, err := digestOf(dir)
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	put("kubernetes/go.mod", "one")
	first := put("coredns/go.mod", "one")
	if again := put("coredns/go.mod", "one"); again != first {
		t.Error("the same source has two names")
	}
	if second := put("coredns/go.mod", "two"); second == first {
		t.Error("two sources have one name")
	}
}
