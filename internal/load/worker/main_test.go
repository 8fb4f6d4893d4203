// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"mustang/internal/load"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

const roleVariable = "MUSTANG_LOAD_TEST_ROLE" // makes the test binary play another program

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "agent":
		if err := Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "parent": // of an agent that it leaves running
		a, err := load.StartAgent(context.Background(), agentOptions(nil))
		if err == nil {
			err = a.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(a.PID(), a.Address())
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(testkit.CheckLeaks(m))
}

// agentOptions start this binary as an agent, inside ns unless it is nil.
func agentOptions(ns *netns.Namespace) load.AgentOptions {
	o := load.AgentOptions{Args: []string{}, Env: []string{roleVariable + "=agent"}, CPU: -1, Congestion: "reno"}
	if ns != nil {
		o.Start = ns.Start
	}
	return o
}

// pair is a client and a server that listens.
type pair struct {
	ns             *netns.Namespace
	client, server *load.Agent
}

// newPair starts both in a namespace of their own; host is where the server listens.
func newPair(t testing.TB, host string) pair {
	t.Helper()
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "load")
	p := pair{ns: ns, client: startAgent(t, agentOptions(ns)), server: startAgent(t, agentOptions(ns))}
	testkit.Succeed(t, p.server.Listen(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(host), 0)))
	return p
}

// spec is a short run against the pair's server.
func (p pair) spec(workload string) load.Spec {
	return load.Spec{Workload: workload, Target: p.server.Address(), Duration: 200 * time.Millisecond,
		Warmup: 50 * time.Millisecond, Stall: 20 * time.Second}
}

func startAgent(t testing.TB, o load.AgentOptions) *load.Agent {
	t.Helper()
	a, err := load.StartAgent(t.Context(), o)
	testkit.Succeed(t, err)
	t.Cleanup(func() {
		err := a.Close()
		testkit.Check(t, err == nil, "%v", err)
	})
	return a
}
