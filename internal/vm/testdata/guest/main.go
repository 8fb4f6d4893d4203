// SPDX-License-Identifier: Apache-2.0

// Command guest is the only program of the bare guests of tests. It copies its input to its output.
package main

import (
	"fmt"
	"io"
	"os"

	"mustang/internal/vm"
)

func main() {
	if vm.IsInit() {
		fmt.Fprintln(os.Stderr, vm.Init(nil))
		return
	}
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(3)
}
