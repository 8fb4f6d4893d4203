// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"mustang/internal/testkit"
)

const partly = `package partly

import "testing"

func TestPartly(t *testing.T) {
	t.Run("on any", func(t *testing.T) { t.Error("not to be run") })
	t.Run("on|this [kernel]", func(t *testing.T) { t.Error("run") })
}

func TestOther(t *testing.T) { t.Error("not to be run") }

func TestWhole(t *testing.T) {
	t.Run("below", func(t *testing.T) { t.Error("below") })
}
`

// TestSkipped runs the tests of a list, and no others.
func TestSkipped(t *testing.T) {
	program := program(t)
	dir := module(t, map[string]string{"partly/partly_test.go": partly, "bad/bad_test.go": bad})
	list := filepath.Join(dir, "skipped")
	named := filepath.Join(dir, "partly")
	text := named + "\tTestWhole\n" + named + "\tTestPartly/on|this_[kernel]\n" + named + "\tTestWhole\n"
	testkit.Succeed(t, os.WriteFile(list, []byte(text), 0o600))
	code, output := run(t, dir, program, "-skipped", list, "test")
	want := `^guest: .*
--- FAIL: TestPartly \(\S+\)
    --- FAIL: TestPartly/on\|this_\[kernel\] \(\S+\)
        partly_test\.go:7: run
--- FAIL: TestWhole \(\S+\)
    --- FAIL: TestWhole/below \(\S+\)
        partly_test\.go:13: below
FAIL
FAIL	example/partly	[0-9.]+s
$`
	testkit.Check(t, code == exitFailed && regexp.MustCompile(want).MatchString(output),
		"exit code %d, output\n%s", code, output)
}

// TestSkippedFilter runs the tests of a list with matching names.
func TestSkippedFilter(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skipped")
	testkit.Succeed(t, os.WriteFile(list, []byte("/a\tTestOne/sub\n/a\tTestTwo\n/b\tTestTwo/One\n"), 0o600))
	got, err := readSkipped(list, "^TestOne/")
	testkit.Check(t, err == nil && len(got) == 1 && got["/a"] == "^TestOne$/^sub$", "%v, %v", got, err)
	for _, pattern := range []string{"(", "^TestThree"} {
		_, err := readSkipped(list, pattern)
		testkit.Check(t, err != nil, "accepted pattern %q", pattern)
	}
}
