// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"mustang/internal/testkit"
)

func TestMain(m *testing.M) {
	for variable, role := range map[string]func(string) error{childVariable: child, dialVariable: dial} {
		if text := os.Getenv(variable); text != "" {
			if err := role(text); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	if filepath.Base(os.Args[0]) == fakeIPAM {
		if err := runFakeIPAM(os.Args[0], os.Getenv("CNI_COMMAND")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	code := testkit.CheckLeaks(m)
	if builtDir != "" {
		_ = os.RemoveAll(builtDir)
	}
	os.Exit(code)
}
