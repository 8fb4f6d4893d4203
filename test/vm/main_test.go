// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

func program(t *testing.T) string {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "qemu-system-x86_64")
	path := filepath.Join(t.TempDir(), "vm")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	testkit.Require(t, err == nil, "go build: %v: %s", err, out)
	return path
}

func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example\n\ngo 1.26\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		testkit.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

func run(t *testing.T, dir string, args ...string) (code int, output string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	testkit.Require(t, err == nil || errors.As(err, &exit), "%v", err)
	return cmd.ProcessState.ExitCode(), out.String()
}

const good = `package good

import ("os"; "testing")

func TestGood(t *testing.T) {
	if os.Getenv("MUSTANG_REQUIRE") != "all" || os.Getenv("MUSTANG_GUEST") != "1" {
		t.Error("environment", os.Environ())
	}
	if _, err := os.Stat("good_test.go"); err != nil {
		t.Error(err)
	}
	t.Log("not to be seen")
}
`

const bad = `package bad

import "testing"

func TestBad(t *testing.T) { t.Error("it is bad") }
`

const deadly = `package deadly

import ("fmt"; "os"; "testing")

func TestDeadly(t *testing.T) {
	fmt.Println("last words")
	t.Fatal(os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
}
`

// TestPackages runs packages that pass, fail, and lack tests.
func TestPackages(t *testing.T) {
	dir := module(t, map[string]string{"good/good_test.go": good, "bad/bad_test.go": bad,
		"none/none.go": "package none\n"})
	code, output := run(t, dir, program(t), "test", "./...")
	want := `^guest: linux-image-6\.12\.\S+-cloud-amd64 6\.12\.\S+, release 6\.12\.\S+-cloud-amd64
--- FAIL: TestBad \(\S+\)
    bad_test\.go:5: it is bad
FAIL
FAIL	example/bad	[0-9.]+s
ok  	example/good	[0-9.]+s
\?   	example/none	\[no test files\]
$`
	testkit.Check(t, code == exitFailed && regexp.MustCompile(want).MatchString(output),
		"exit code %d, output\n%s", code, output)
}

// TestGuestEnds has a test panic its guest's kernel. Other packages have guests of their own.
func TestGuestEnds(t *testing.T) {
	dir := module(t, map[string]string{"deadly/deadly_test.go": deadly, "x/good_test.go": good})
	code, output := run(t, dir, program(t), "test", "./...")
	for _, part := range []string{"last words", "FAIL\texample/deadly\t[the guest ended]", "Kernel panic",
		"ok  \texample/x\t"} {
		testkit.Check(t, strings.Contains(output, part), "output does not hold %q", part)
	}
	testkit.Check(t, code == exitFailed, "exit code %d, output\n%s", code, output)
}

// TestExec runs a test program via go test -exec.
func TestExec(t *testing.T) {
	dir := module(t, map[string]string{"good/good_test.go": good})
	t.Setenv("CGO_ENABLED", "0")
	t.Setenv("MUSTANG_REQUIRE", "all")
	t.Setenv("MUSTANG_GUEST", "1")
	code, output := run(t, dir, "go", "test", "-v", "-exec", program(t)+" --", "./good")
	if code != 0 || !strings.Contains(output, "ok  \texample/good") || !strings.Contains(output, "not to be seen") {
		t.Errorf("exit code %d, output\n%s", code, output)
	}
}

// TestUsage has command lines that make no sense.
func TestUsage(t *testing.T) {
	for _, line := range []string{"", "--", "test", "frob", "-frob -- true", "true", "test x -- y", "-memory x -- true",
		"-skipped x test y", "-skipped x -run y test z"} {
		t.Run(line, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := runner{stdout: &stdout, stderr: &stderr}.main(t.Context(), strings.Fields(line))
			testkit.Check(t, code == exitMisuse && strings.Contains(stderr.String(), "usage:") && stdout.Len() <= 0,
				"exit code %d, stdout %q, stderr %q", code, &stdout, &stderr)
		})
	}
}

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
