// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"mustang/internal/vm"
)

// work is what the guest is to test. It stands in workName in a directory that
// the guest writes to.
type work struct {
	Packages []testPackage
	Verbose  bool
	Timeout  time.Duration // of each package
}

const workName = "work.json"

// testPackage is a package with tests.
type testPackage struct {
	ImportPath string
	Dir        string
	Binary     string // empty if there are no tests
	Log        string // where the guest writes what the tests print
	Run        string // as of go test -run
}

// testSkipped runs the tests of the list in a guest.
func (r runner) testSkipped(ctx context.Context) int {
	dirs, tests, err := readSkipped(r.skipped)
	if err != nil {
		return r.fail(exitFailed, err)
	}
	if len(dirs) == 0 {
		fmt.Fprintln(r.stdout, "guest: there is nothing to run, since this kernel ran every test")
		return 0
	}
	return r.test(ctx, dirs, tests)
}

// test builds the tests of packages and runs them in one guest: of a package whose
// directory tests has, those that match.
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
	w := work{Verbose: r.verbose, Timeout: r.timeout}
	if w.Packages, err = r.build(ctx, dir, packages); err != nil {
		return r.fail(exitFailed, err)
	}
	for i, p := range w.Packages {
		w.Packages[i].Run = cmp.Or(tests[p.Dir], r.run)
	}
	data, err := json.Marshal(w)
	if err != nil {
		return r.fail(exitFailed, err)
	}
	if err := os.WriteFile(filepath.Join(dir, workName), data, 0o600); err != nil {
		return r.fail(exitFailed, err)
	}
	exe, err := os.Executable()
	if err != nil {
		return r.fail(exitFailed, err)
	}
	o := r.guest
	o.Kernel, o.Share, o.Command = kernel, dir, []string{exe, insideName, dir}
	o.Timeout, o.Grace = time.Minute+time.Duration(len(w.Packages))*r.timeout, 5*time.Second
	o.Stdout, o.Stderr = r.stdout, r.stderr
	o.Modules = modules
	fmt.Fprintf(r.stdout, "guest: %s, release %s\n", kernel, kernel.Release)
	code, err = vm.Run(ctx, o)
	if err != nil {
		r.unfinished(w.Packages)
		return r.fail(exitFailed, err)
	}
	return code
}

// build compiles the tests of packages into dir, without C, since the guest is
// to need nothing but the kernel.
func (r runner) build(ctx context.Context, dir string, patterns []string) ([]testPackage, error) {
	out, err := r.goTool(ctx, append([]string{"list", "-f", "{{.ImportPath}}\t{{.Dir}}", "--"}, patterns...))
	if err != nil {
		return nil, err
	}
	var packages []testPackage
	for line := range strings.Lines(out) {
		path, source, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			return nil, fmt.Errorf("go list: %q: want a path and a directory", line)
		}
		base := filepath.Join(dir, fmt.Sprint(len(packages)))
		p := testPackage{ImportPath: path, Dir: source, Binary: base + ".test", Log: base + ".log"}
		if _, err := r.goTool(ctx, []string{"test", "-c", "-o", p.Binary, path}); err != nil {
			return nil, err
		}
		if _, err := os.Stat(p.Binary); errors.Is(err, os.ErrNotExist) {
			p.Binary = ""
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// goTool runs the go command and returns what it prints.
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

// unfinished prints what the tests had printed that ran when the guest ended. A
// log is removed when its tests are done.
func (r runner) unfinished(packages []testPackage) {
	for _, p := range packages {
		if data, err := os.ReadFile(p.Log); err == nil {
			fmt.Fprintf(r.stdout, "%sFAIL\t%s\t[the guest ended]\n", data, p.ImportPath)
		}
	}
}
