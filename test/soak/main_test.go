// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"os"
	"testing"

	"mustang/internal/testkit"
)

// TestMain is also the entry point of the process that applies services until it is killed.
func TestMain(m *testing.M) {
	if root := os.Getenv(applyVariable); root != "" {
		os.Exit(applyForever(root))
	}
	os.Exit(testkit.CheckLeaks(m))
}
