// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"os"
	"testing"

	"mustang/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }
