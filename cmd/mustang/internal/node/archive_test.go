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

func writes(text string, err error) func(context.Context, io.Writer) error {
	return func(_ context.Context, to io.Writer) error {
		_, _ = io.WriteString(to, text)
		return err
	}
}

// TestArchive collects what is there, and lists what fails, takes too long or is too large, and what is left when the
// context ends.
func TestArchive(t *testing.T) {
	var file bytes.Buffer
	a := newArchive(&file, 2<<20, time.Second)
	ctx, cancel := context.WithCancelCause(t.Context())
	a.collect(ctx, "good", writes("password="+secret, nil))
	a.collect(ctx, "half", writes("half", errors.New("no\nmore")))
	a.collect(ctx, "never", func(_ context.Context, to io.Writer) error {
		_, _ = io.WriteString(to, "begun")
		select {}
	})
	a.collect(ctx, "large", writes(strings.Repeat("x", 3<<20), nil))
	a.collect(ctx, "after", writes("small", nil))
	cancel(errors.New("enough"))
	a.collect(ctx, "late", writes("late", nil))
	err := a.close()
	testkit.Check(t, err == nil, "%v", err)
	want := map[string]string{
		"good": "password=REMOVED", "half": "half", "never": "begun", "after": "small",
		"missing.txt": "half: no more\nnever: not done within 1s\nlarge: 3145728 bytes do not fit\nlate: enough\n",
	}
	have := testkit.Unpack(t, &file)
	testkit.Check(t, fmt.Sprint(have) == fmt.Sprint(want), "there is %q, want %q", have, want)
}

// TestMerge puts another archive below a directory, with any names, and removes its secrets.
func TestMerge(t *testing.T) {
	var inner, outer bytes.Buffer
	from := newArchive(&inner, 1<<20, time.Minute)
	for _, name := range []string{"a/b", "../../etc/x", "/abs"} {
		from.write(name, []byte("token: "+secret))
	}
	testkit.Succeed(t, from.close())
	a := newArchive(&outer, 1<<20, time.Minute)
	testkit.Succeed(t, a.merge("nodes/n", bytes.NewReader(inner.Bytes())))
	err := a.merge("nodes/m", bytes.NewReader(inner.Bytes()[:inner.Len()/2]))
	testkit.Check(t, err != nil, "half an archive is taken for a whole one")
	err = a.merge("nodes/m", strings.NewReader("exec: no such file"))
	testkit.Check(t, err != nil, "a text is taken for an archive")
	testkit.Succeed(t, a.close())
	have := testkit.Unpack(t, &outer)
	for _, name := range []string{"nodes/n/a/b", "nodes/n/etc/x", "nodes/n/abs", "nodes/n/missing.txt"} {
		text, ok := have[name]
		testkit.Check(t, ok && !strings.Contains(text, secret), "%s has %q", name, text)
	}
}
