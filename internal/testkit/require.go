// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// RequireVariable is the environment variable that turns skips into failures:
//
//   - "all": every skip. For machines whose kernel has all that we use, such as the
//     guests of test/vm.
//   - "machine": every skip but those of [RequireMode]. For machines where all is
//     installed, and whose kernel is what it is.
//
// Any other value is as good as none: what can't be tested is skipped.
const RequireVariable = "MUSTANG_REQUIRE"

// SkippedVariable is the environment variable that names a file in which we note the
// tests that this kernel can't run, or only in part, so that they can be run on
// another one: a line for each, with the package's directory, a tab and the test's
// name.
const SkippedVariable = "MUSTANG_SKIPPED"

// Skip ends the test because this machine can't run it: as skipped, or as failed
// if RequireVariable is "all" or "machine". Besides [RequireMode] it is the only
// place where our tests are skipped.
func Skip(t testing.TB, reason string) {
	t.Helper()
	skip(t, reason, "all", "machine")
}

// skip skips the test, or fails it if RequireVariable is one of the values.
func skip(t testing.TB, reason string, values ...string) {
	t.Helper()
	if value := os.Getenv(RequireVariable); slices.Contains(values, value) {
		t.Fatalf("%s=%s, but: %s", RequireVariable, value, reason)
	}
	t.Skip(reason)
}

// RequireRoot skips the test unless it runs as root.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root")
	}
}

// RequireKernel skips the test on a Linux older than major.minor.
func RequireKernel(t testing.TB, major, minor int) {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatalf("uname: %v", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	var haveMajor, haveMinor int
	if _, err := fmt.Sscanf(release, "%d.%d", &haveMajor, &haveMinor); err != nil {
		t.Fatalf("parse kernel release %q: %v", release, err)
	}
	if haveMajor < major || haveMajor == major && haveMinor < minor {
		Skip(t, fmt.Sprintf("needs Linux %d.%d, this is %s", major, minor, release))
	}
}

// RequireTool skips the test unless the program name is on the PATH.
func RequireTool(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		Skip(t, "needs the program "+name)
	}
}

// RequireMode skips the test if probe, the result of a link mode's Probe or of a
// similar question, says that this kernel lacks it: it matches
// errors.ErrUnsupported. Where RequireVariable is "all" that is a failure. Any
// other error always is: then the question could not be answered.
func RequireMode(t testing.TB, probe error) {
	t.Helper()
	if probe == nil {
		return
	}
	if !errors.Is(probe, errors.ErrUnsupported) {
		t.Fatalf("probe what the kernel has: %v", probe)
	}
	NeedsOther(t)
	skip(t, probe.Error(), "all")
}

// NeedsOther notes in the file of SkippedVariable, if it is set, that the test is to
// be run on another kernel, too, since this one has only a part of what it is about.
func NeedsOther(t testing.TB) {
	t.Helper()
	path := os.Getenv(SkippedVariable)
	if path == "" {
		return
	}
	dir, err := os.Getwd() // the package's, as go test has it
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatalf("%s: %v", SkippedVariable, err)
	}
	_, err = fmt.Fprintf(file, "%s\t%s\n", dir, t.Name())
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatalf("%s: %v", SkippedVariable, err)
	}
}

// Eventually calls cond until it returns nil, and fails the test with cond's
// last error if that takes longer than d.
func Eventually(t testing.TB, d time.Duration, cond func() error) {
	t.Helper()
	for deadline := time.Now().Add(d); ; {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still not after %v: %v", d, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// NotInGuest skips the test in a guest of ours, for tests that boot guests: they
// are run on the machine itself, and an emulated machine emulates too slowly.
// That is so everywhere, and no skip that RequireVariable forbids.
func NotInGuest(t testing.TB) {
	t.Helper()
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range names {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(name)) == "mustang" {
			t.Skip("this is a guest of ours already")
		}
	}
}
