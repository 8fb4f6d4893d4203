// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"mustang/internal/vm"
)

// insideName is the command that runs in the guest, with the directory that
// holds the work.
const insideName = "run-tests-in-guest"

// work is a guest's job: to test a package. The file workName holds it, in a directory that the guest writes to, beside
// the test binary and its log.
type work struct {
	ImportPath string
	Dir        string
	Verbose    bool
	Run        string // as of go test -run
	Timeout    time.Duration
}

const (
	workName   = "work.json"
	binaryName = "tests"
	logName    = "log"
)

// testSkipped runs the tests of the list in guests, if their name matches -run.
func (r runner) testSkipped(ctx context.Context) int {
	tests, err := readSkipped(r.skipped, r.run)
	if err != nil {
		return r.fail(exitFailed, err)
	}
	if len(tests) == 0 {
		fmt.Fprintln(r.stdout, "guest: nothing to run: this kernel ran every test")
		return 0
	}
	packages := slices.Sorted(maps.Keys(tests))
	slices.Reverse(packages) // so that package lab, which takes longest, does not begin last
	return r.test(ctx, packages, tests)
}

// test builds the tests of packages and runs each package in its own guest, as many guests at once as there are
// processors. tests limits a package to a pattern, by its directory; nil means -run for all. Output comes in the
// order of the packages.
//
// A guest has one processor by default. QEMU's emulation fails when one processor patches kernel code (a static key)
// while another translates it: the guest dies of a stale breakpoint.
func (r runner) test(ctx context.Context, packages []string, tests map[string]string) (code int) {
	kernel, err := vm.FetchKernel(ctx, r.kernels)
	if err != nil {
		return r.fail(exitFailed, err)
	}
	dir, err := os.MkdirTemp("", "mustang-vm-")
	if err != nil {
		return r.fail(exitFailed, err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			code = r.fail(exitFailed, err)
		}
	}()
	list, err := r.list(ctx, packages)
	if err != nil {
		return r.fail(exitFailed, err)
	}
	fmt.Fprintf(r.stdout, "guest: %s, release %s\n", kernel, kernel.Release)
	r.guest.Kernel = kernel
	limit := runtime.NumCPU()
	if r.verbose { // to be seen while they run
		limit = 1
	}
	slots, outcomes := make(chan struct{}, limit), make([]chan outcome, len(list))
	for i := range list {
		outcomes[i] = make(chan outcome, 1)
	}
	go func() {
		for i, w := range list {
			w.Run = r.run
			if tests != nil {
				w.Run = tests[w.Dir]
			}
			slots <- struct{}{}
			go func() {
				outcomes[i] <- r.outcome(ctx, w, filepath.Join(dir, strconv.Itoa(i)))
				<-slots
			}()
		}
	}()
	for _, c := range outcomes {
		o := <-c
		code = max(code, o.code)
		if _, err := io.Copy(r.stdout, &o.stdout); err != nil {
			code = exitFailed
		}
		if _, err := io.Copy(r.stderr, &o.stderr); err != nil {
			code = exitFailed
		}
	}
	return code
}

// list returns the jobs for packages.
func (r runner) list(ctx context.Context, packages []string) ([]work, error) {
	out, err := r.goTool(ctx, append([]string{"list", "-f", "{{.ImportPath}}\t{{.Dir}}", "--"}, packages...))
	if err != nil {
		return nil, err
	}
	var list []work
	for line := range strings.Lines(out) {
		path, source, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			return nil, fmt.Errorf("go list: %q: want a path and a directory", line)
		}
		list = append(list, work{ImportPath: path, Dir: source, Verbose: r.verbose, Timeout: r.timeout})
	}
	return list, nil
}

// outcome is the exit code and the output of a package's tests.
type outcome struct {
	code           int
	stdout, stderr bytes.Buffer
}

// outcome tests a package. With -v its output is printed at once.
func (r runner) outcome(ctx context.Context, w work, dir string) (o outcome) {
	if !r.verbose {
		r.stdout, r.stderr = &o.stdout, &o.stderr
	}
	o.code = r.inGuest(ctx, w, dir)
	return o
}

// inGuest builds the tests of a package into dir without cgo, so that they need no libraries, and runs them in a guest.
func (r runner) inGuest(ctx context.Context, w work, dir string) int {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return r.fail(exitFailed, err)
	}
	binary := filepath.Join(dir, binaryName)
	if _, err := r.goTool(ctx, []string{"test", "-c", "-o", binary, w.ImportPath}); err != nil {
		return r.fail(exitFailed, err)
	}
	if _, err := os.Stat(binary); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(r.stdout, "?   \t%s\t[no test files]\n", w.ImportPath)
		return 0
	}
	data, err := json.Marshal(w)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, workName), data, 0o600)
	}
	if err != nil {
		return r.fail(exitFailed, err)
	}
	exe, err := os.Executable()
	if err != nil {
		return r.fail(exitFailed, err)
	}
	o := r.guest
	o.Share, o.Command = dir, []string{exe, insideName, dir}
	o.Timeout, o.Grace = time.Minute+r.timeout, 5*time.Second
	o.Stdout, o.Stderr = r.stdout, r.stderr
	o.Modules = modules
	code, err := vm.Run(ctx, o)
	if err != nil {
		// The log is removed when the tests are done.
		if said, err := os.ReadFile(filepath.Join(dir, logName)); err == nil {
			fmt.Fprintf(r.stdout, "%sFAIL\t%s\t[the guest ended]\n", said, w.ImportPath)
		}
		return r.fail(exitFailed, err)
	}
	return code
}

// inside runs the tests of a package, prints how they ended, and returns the exit
// code.
func (r runner) inside(ctx context.Context, dir string) (code int) {
	var w work
	data, err := os.ReadFile(filepath.Join(dir, workName))
	if err == nil {
		err = json.Unmarshal(data, &w)
	}
	if err != nil {
		return r.fail(exitMisuse, err)
	}
	// A file, since the memory of a guest is lost when it dies.
	log, err := os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return r.fail(exitFailed, err)
	}
	defer func() {
		if err := errors.Join(log.Close(), os.Remove(log.Name())); err != nil {
			code = r.fail(exitFailed, err)
		}
	}()
	args := []string{"-test.paniconexit0", "-test.count=1", "-test.timeout=" + w.Timeout.String(), "-test.run=" + w.Run}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, binaryName), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if w.Verbose {
		cmd.Args = append(cmd.Args, "-test.v=true")
		cmd.Stdout, cmd.Stderr = r.stdout, r.stdout
	}
	cmd.Dir = w.Dir
	cmd.Env = append(os.Environ(), "MUSTANG_REQUIRE=all", "MUSTANG_GUEST=1")
	start := time.Now()
	runErr := cmd.Run()
	taken := time.Since(start).Seconds()
	if runErr == nil {
		fmt.Fprintf(r.stdout, "ok  \t%s\t%.1fs\n", w.ImportPath, taken)
		return 0
	}
	said, err := os.ReadFile(log.Name())
	if err != nil {
		return r.fail(exitFailed, err)
	}
	if runErr.Error() != "exit status 1" { // which the tests explain themselves
		said = fmt.Appendln(said, runErr)
	}
	fmt.Fprintf(r.stdout, "%sFAIL\t%s\t%.1fs\n", said, w.ImportPath, taken)
	return exitFailed
}

// goTool runs the go command and returns its output.
func (r runner) goTool(ctx context.Context, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, r.stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return stdout.String(), nil
}
