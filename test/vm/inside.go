// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// insideName is the command that runs in the guest, with the directory that
// holds the work.
const insideName = "run-tests-in-guest"

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
