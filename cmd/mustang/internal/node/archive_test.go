// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

func textItem(name, text string, err error) item {
	return item{name, func(_ context.Context, to io.Writer) error {
		_, _ = io.WriteString(to, text)
		return err
	}}
}

// TestArchive collects what is there, and lists what fails, takes too long or is too large. It has its name once it is complete.
func TestArchive(t *testing.T) {
	name := filepath.Join(t.TempDir(), "dump.tar.gz")
	a, err := create(name, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	never := item{"never", func(_ context.Context, to io.Writer) error {
		_, _ = io.WriteString(to, "begun")
		select {}
	}}
	err = a.Collect(t.Context(), 100*time.Millisecond, []item{
		textItem("good", "password="+secret, nil), textItem("half", "half", errors.New("no\nmore")), never, textItem("large", strings.Repeat("x", 3<<20), nil), textItem("after", "small", nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before it is complete: %v", err)
	}
	if missing, err := a.Close(); err != nil || len(missing) != 3 {
		t.Errorf("missing %q, %v", missing, err)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	want := map[string]string{
		"good": "password=REMOVED", "half": "half", "never": "begun", "after": "small",
		"missing.txt": "half: no more\nnever: not done within 100ms\nlarge: 3145728 bytes do not fit\n",
	}
	if have := testkit.Unpack(t, file); fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("there is %q, want %q", have, want)
	}
	if _, err := create(name, 1); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second one: %v", err)
	}
}

// TestInterrupted leaves nothing of an archive that is not complete, nor writes over a file that has come meanwhile.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "dump.tar.gz")
	a, err := create(name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := item{"stop", func(context.Context, io.Writer) error { cancel(); return nil }}
	if err := a.Collect(ctx, time.Minute, []item{textItem("one", "1", nil), stop, textItem("two", "2", nil)}); err != nil || len(a.missing) == 0 {
		t.Errorf("interrupted: %v, and %q are missing", err, a.missing)
	}
	a.Abort()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if a, err = create(name, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Close(); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file has come: %v", err)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "other" {
		t.Errorf("it has %q, %v", data, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestMerge puts another archive below a directory, whatever names it has, and removes its secrets.
func TestMerge(t *testing.T) {
	var inner, outer bytes.Buffer
	from := stream(&inner, 1<<20)
	for _, name := range []string{"a/b", "../../etc/x", "/abs"} {
		if err := from.write(name, []byte("token: "+secret)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := from.Close(); err != nil {
		t.Fatal(err)
	}
	a := stream(&outer, 1<<20)
	if err := a.Merge("nodes/n", bytes.NewReader(inner.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := a.Merge("nodes/m", bytes.NewReader(inner.Bytes()[:inner.Len()/2])); err == nil {
		t.Error("half an archive is taken for a whole one")
	}
	if err := a.Merge("nodes/m", strings.NewReader("exec: no such file")); err == nil {
		t.Error("a text is taken for an archive")
	}
	if _, err := a.Close(); err != nil {
		t.Fatal(err)
	}
	have := testkit.Unpack(t, &outer)
	for _, name := range []string{"nodes/n/a/b", "nodes/n/etc/x", "nodes/n/abs", "nodes/n/missing.txt"} {
		if text, ok := have[name]; !ok || strings.Contains(text, secret) {
			t.Errorf("%s has %q", name, text)
		}
	}
}
