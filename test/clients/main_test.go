// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"mustang/internal/testkit"
)

// parallel is the default of -parallel. Most of the time the tests wait.
const parallel = "4"

// TestMain is also the entry point of a machine's first process.
func TestMain(m *testing.M) {
	if os.Getenv(machineVariable) != "" {
		os.Exit(firstProcess())
	}
	if err := errors.Join(clearCgroups(), clearBuilds(), flag.Set("test.parallel", parallel)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	code := testkit.CheckLeaks(m)
	if dir, err := buildDir(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}
