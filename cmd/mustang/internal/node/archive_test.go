// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

// TestArchive collects what is there, and lists what fails, takes too long or is too large.
func TestArchive(t *testing.T) {
	var file bytes.Buffer
	a := stream(&file, 2<<20)
	never := item{"never", func(_ context.Context, to io.Writer) error {
		_, _ = io.WriteString(to, "begun")
		select {}
	}}
	err := a.Collect(t.Context(), 100*time.Millisecond, []item{
		textItem("good", "password="+secret, nil), textItem("half", "half", errors.New("no\nmore")), never, textItem("large", strings.Repeat("x", 3<<20), nil), textItem("after", "small", nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := a.Close(); err != nil || len(missing) != 3 {
		t.Errorf("missing %q, %v", missing, err)
	}
	want := map[string]string{
		"good": "password=REMOVED", "half": "half", "never": "begun", "after": "small",
		"missing.txt": "half: no more\nnever: not done within 100ms\nlarge: 3145728 bytes do not fit\n",
	}
	if have := testkit.Unpack(t, &file); fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("there is %q, want %q", have, want)
	}
}

// TestInterrupted goes on to no other item once its context has ended.
func TestInterrupted(t *testing.T) {
	a := stream(io.Discard, 1<<20)
	ctx, cancel := context.WithCancel(t.Context())
	stop := item{"stop", func(context.Context, io.Writer) error { cancel(); return nil }}
	if err := a.Collect(ctx, time.Minute, []item{textItem("one", "1", nil), stop, textItem("two", "2", nil)}); err != nil || len(a.missing) == 0 {
		t.Errorf("interrupted: %v, and %q are missing", err, a.missing)
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
