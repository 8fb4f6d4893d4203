// SPDX-License-Identifier: Apache-2.0

package load_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"mustang/internal/load"
	"mustang/internal/load/worker"
	"mustang/internal/testkit"
)

const roleVariable = "MUSTANG_LOAD_TEST_ROLE" // makes the test binary play another program

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "agent":
		if err := worker.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "mute":
		_, _ = io.Copy(io.Discard, os.Stdin)
		select {}
	case "babbler":
		fmt.Println("Welcome to this machine")
		select {}
	case "endless":
		for {
			fmt.Print("no line ends here ")
		}
	case "old":
		fmt.Println(`{"id":0}`)
		select {}
	case "newer":
		fmt.Println(`{"id":0,"hello":{"protocol":99,"version":"v9.9.9"}}`)
		select {}
	case "complaining":
		fmt.Fprintln(os.Stderr, "no such host\x1b[31m\n  and no route  ")
		os.Exit(255)
	}
	os.Exit(testkit.CheckLeaks(m))
}

func agentOptions() load.AgentOptions {
	return load.AgentOptions{Args: []string{}, Env: []string{roleVariable + "=agent"}, CPU: -1}
}
