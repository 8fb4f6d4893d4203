// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// noPreemption in GODEBUG switches the scheduler's signals off, which would interrupt
// the blocking calls every 10 ms.
const noPreemption = "asyncpreemptoff=1"

func withoutPreemption(env []string) []string {
	value := noPreemption
	if old := os.Getenv("GODEBUG"); old != "" {
		value = old + "," + value
	}
	return append(env, "GODEBUG="+value) // the last one counts
}

// DisablePreemption switches the Go scheduler's signals off. If they are on, it executes
// the program anew with the same arguments and does not return. A shell to another
// machine passes no environment.
func DisablePreemption() error {
	if strings.Contains(os.Getenv("GODEBUG"), noPreemption) {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("load agent: %w", err)
	}
	return fmt.Errorf("load agent: execute %s: %w", exe, unix.Exec(exe, os.Args, withoutPreemption(os.Environ())))
}
