// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// insideName is the command that runs in the guest, with the directory that
// holds the work.
const insideName = "run-tests-in-guest"

// inside runs the tests of all packages, one package after the other, and
// returns the exit code.
func (r runner) inside(ctx context.Context, dir string) int {
	var w work
	data, err := os.ReadFile(filepath.Join(dir, workName))
	if err == nil {
		err = json.Unmarshal(data, &w)
	}
	if err != nil {
		return r.fail(exitMisuse, err)
	}
	code := 0
	for _, p := range w.Packages {
		if p.Binary == "" {
			fmt.Fprintf(r.stdout, "?   \t%s\t[no test files]\n", p.ImportPath)
			continue
		}
		ok, err := r.testPackage(ctx, w, p)
		if err != nil {
			return r.fail(exitFailed, err)
		}
		if !ok {
			code = exitFailed
		}
	}
	return code
}

// testPackage runs the tests of a package and reports whether they passed. An
// error means that they could not be run.
func (r runner) testPackage(ctx context.Context, w work, p testPackage) (passed bool, err error) {
	// A file, since a guest that dies takes with it what it has in memory.
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, log.Close(), os.Remove(p.Log)) }()
	args := []string{"-test.paniconexit0", "-test.count=1", "-test.timeout=" + w.Timeout.String(), "-test.run=" + w.Run}
	cmd := exec.CommandContext(ctx, p.Binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if w.Verbose {
		cmd.Args = append(cmd.Args, "-test.v=true")
		cmd.Stdout, cmd.Stderr = r.stdout, r.stdout
	}
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), "MUSTANG_REQUIRE=all", "MUSTANG_GUEST=1")
	start := time.Now()
	runErr := cmd.Run()
	taken := time.Since(start).Seconds()
	if runErr == nil {
		fmt.Fprintf(r.stdout, "ok  \t%s\t%.1fs\n", p.ImportPath, taken)
		return true, nil
	}
	if _, err := log.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	if _, err := io.Copy(r.stdout, log); err != nil {
		return false, err
	}
	if runErr.Error() != "exit status 1" { // which the tests explain themselves
		fmt.Fprintln(r.stdout, runErr)
	}
	fmt.Fprintf(r.stdout, "FAIL\t%s\t%.1fs\n", p.ImportPath, taken)
	return false, nil
}
