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

// parallel is how many tests run at a time unless -parallel says so. They wait more
// than they work.
const parallel = "4"

// TestMain also is the first process of a machine.
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
