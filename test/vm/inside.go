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
	"runtime"
	"time"
)

// insideName is the command that runs in the guest, with the directory that
// holds the work.
const insideName = "run-tests-in-guest"

// inside runs the tests of all packages, as many at once as there are processors,
// and returns the exit code. It prints how they ended in their order. If what they
// print is to be seen while they run, it is one package after the other.
func (r runner) inside(ctx context.Context, dir string) int {
	var w work
	data, err := os.ReadFile(filepath.Join(dir, workName))
	if err == nil {
		err = json.Unmarshal(data, &w)
	}
	if err != nil {
		return r.fail(exitMisuse, err)
	}
	limit := runtime.NumCPU()
	if w.Verbose {
		limit = 1
	}
	slots := make(chan struct{}, limit)
	outcomes := make([]chan outcome, len(w.Packages))
	for i := range outcomes {
		outcomes[i] = make(chan outcome, 1)
	}
	go func() {
		for i, p := range w.Packages {
			slots <- struct{}{}
			go func() {
				outcomes[i] <- r.testPackage(ctx, w, p)
				<-slots
			}()
		}
	}()
	code := 0
	for _, c := range outcomes {
		o := <-c
		if o.err != nil {
			return r.fail(exitFailed, o.err)
		}
		if _, err := r.stdout.Write(o.said); err != nil {
			return r.fail(exitFailed, err)
		}
		if o.failed {
			code = exitFailed
		}
	}
	return code
}

// outcome is how the tests of a package ended, and what is to be said of them. An
// error means that they could not be run.
type outcome struct {
	said   []byte
	failed bool
	err    error
}

// testPackage runs the tests of a package.
func (r runner) testPackage(ctx context.Context, w work, p testPackage) (o outcome) {
	if p.Binary == "" {
		o.said = fmt.Appendf(nil, "?   \t%s\t[no test files]\n", p.ImportPath)
		return o
	}
	// A file, since a guest that dies takes with it what it has in memory.
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		o.err = err
		return o
	}
	defer func() { o.err = errors.Join(o.err, log.Close(), os.Remove(p.Log)) }()
	args := []string{"-test.paniconexit0", "-test.count=1", "-test.timeout=" + w.Timeout.String(), "-test.run=" + p.Run}
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
		o.said = fmt.Appendf(nil, "ok  \t%s\t%.1fs\n", p.ImportPath, taken)
		return o
	}
	o.failed = true
	o.said, o.err = os.ReadFile(p.Log)
	if runErr.Error() != "exit status 1" { // which the tests explain themselves
		o.said = fmt.Appendln(o.said, runErr)
	}
	o.said = fmt.Appendf(o.said, "FAIL\t%s\t%.1fs\n", p.ImportPath, taken)
	return o
}
