// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
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
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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
	if code != exitFailed || !regexp.MustCompile(want).MatchString(output) {
		t.Errorf("exit code %d, output\n%s", code, output)
	}
}

// TestSkippedFilter runs the tests of a list with matching names.
func TestSkippedFilter(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skipped")
	if err := os.WriteFile(list, []byte("/a\tTestOne/sub\n/a\tTestTwo\n/b\tTestTwo/One\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readSkipped(list, "^TestOne/")
	if err != nil || len(got) != 1 || got["/a"] != "^TestOne$/^sub$" {
		t.Errorf("%v, %v", got, err)
	}
	for _, pattern := range []string{"(", "^TestThree"} {
		if _, err := readSkipped(list, pattern); err == nil {
			t.Errorf("accepted pattern %q", pattern)
		}
	}
}
