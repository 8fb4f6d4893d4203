// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"os"
	"testing"

	"mustang/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }
