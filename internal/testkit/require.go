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

	"mustang/internal/netns"
)

// RequireVariable is the environment variable that turns skips into failures:
//
//   - "all": every skip. For machines whose kernel has every feature, such as the guests
//     of test/vm.
//   - "machine": every skip except in [RequireMode]. For machines with every program
//     and any kernel.
//
// With any other value, or none, tests are skipped.
const RequireVariable = "MUSTANG_REQUIRE"

// SkippedVariable is the environment variable that names a file for tests that this kernel cannot run, or only in part.
// They can then run on another kernel. Each line has the directory of the package, a tab and the name of the test.
const SkippedVariable = "MUSTANG_SKIPPED"

// Must returns the value of a call, and ends the test if the call failed: Must(call())(t).
func Must[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		Succeed(t, err)
		return v
	}
}

// Succeed ends the test if a call failed.
func Succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Check marks the test as failed, with a message, unless a condition holds.
func Check(t testing.TB, holds bool, format string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf(format, args...)
	}
}

// Require ends the test with a message unless a condition holds.
func Require(t testing.TB, holds bool, format string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf(format, args...)
	}
}

// Fails marks the test as failed unless a call failed with an error that has all the words.
func Fails(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q lacks %q", err, word)
		}
	}
}

// Skip skips a test that this machine cannot run, or fails it if RequireVariable is "all" or "machine".
func Skip(t testing.TB, reason string) {
	t.Helper()
	skip(t, reason, "all", "machine")
}

func skip(t testing.TB, reason string, values ...string) {
	t.Helper()
	if value := os.Getenv(RequireVariable); slices.Contains(values, value) {
		t.Fatalf("%s=%s, but: %s", RequireVariable, value, reason)
	}
	t.Skip(reason)
}

// TierVariable is the environment variable that names the tests to run:
//
// - "unit": tests that need neither root, nor a network namespace, nor a program, also when root runs them. make
// test-unit sets it.
//   - "all": every test, with the long form of fault loops and soak tests ([Repeats]). make test-all sets it.
//
// Any other value, or none, means every test with short loops.
const TierVariable = "MUSTANG_TIER"

// Repeats returns how often a fault loop or a soak test repeats: long with [TierVariable] "all", else short.
func Repeats(short, long int) int {
	if os.Getenv(TierVariable) == "all" {
		return long
	}
	return short
}

// RequireRoot skips the test unless it runs as root. With [TierVariable] "unit" it skips for root too.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Getenv(TierVariable) == "unit" {
		t.Skip("needs root: not a unit test")
	}
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

// RequireTool skips the test unless the program name is on the PATH. With [TierVariable] "unit" it always skips.
func RequireTool(t testing.TB, name string) {
	t.Helper()
	if os.Getenv(TierVariable) == "unit" {
		t.Skip("needs the program " + name + ": not a unit test")
	}
	if _, err := exec.LookPath(name); err != nil {
		Skip(t, "needs the program "+name)
	}
}

// Command runs a program with arguments in a namespace, and returns its output. It must succeed.
func Command(t testing.TB, ns *netns.Namespace, line string) string {
	t.Helper()
	args := strings.Fields(line)
	RequireTool(t, args[0])
	var output strings.Builder
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &output, &output
	Succeed(t, ns.Start(cmd))
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s in %s: %v: %s", line, ns.Name(), err, &output)
	}
	return output.String()
}

// RequireMode skips the test if probe, the result of a link mode's Probe or the like, matches errors.ErrUnsupported:
// this kernel lacks the mode. With RequireVariable "all" the test fails instead. It fails for any other error.
func RequireMode(t testing.TB, probe error) {
	t.Helper()
	if probe == nil {
		return
	}
	if !errors.Is(probe, errors.ErrUnsupported) {
		t.Fatalf("probe a feature of the kernel: %v", probe)
	}
	NeedsOther(t)
	skip(t, probe.Error(), "all")
}

// NeedsOther adds the test to the file of SkippedVariable, if it is set. The test has to run on another kernel too,
// because this one lacks a part of the tested features.
func NeedsOther(t testing.TB) {
	t.Helper()
	path := os.Getenv(SkippedVariable)
	if path == "" {
		return
	}
	dir, err := os.Getwd() // the directory of the package
	Succeed(t, err)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatalf("%s: %v", SkippedVariable, err)
	}
	_, err = fmt.Fprintf(file, "%s\t%s\n", dir, t.Name())
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatalf("%s: %v", SkippedVariable, err)
	}
}

// leastWait is the shortest time after which Eventually fails a test: a busy machine may be that slow.
const leastWait = time.Minute

// Eventually calls cond until it returns nil. It fails the test with cond's last error after d, at least a minute.
func Eventually(t testing.TB, d time.Duration, cond func() error) {
	t.Helper()
	d = max(d, leastWait)
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

// NotInGuest skips a test that boots virtual machines, or that is very slow in one, inside a guest of internal/vm,
// whatever RequireVariable is. Such tests run on the machine itself.
func NotInGuest(t testing.TB) {
	t.Helper()
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	Succeed(t, err)
	for _, file := range names {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(name)) == "mustang" {
			t.Skip("not in a virtual machine")
		}
	}
}
