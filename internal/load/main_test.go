// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// roleVariable makes the test binary play another program.
const roleVariable = "MUSTANG_LOAD_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "agent":
		if err := Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "parent": // of an agent that it leaves running
		a, err := StartAgent(context.Background(), agentOptions(nil))
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

// agentOptions start this binary as an agent, inside ns unless it is nil.
func agentOptions(ns *netns.Namespace) AgentOptions {
	o := AgentOptions{Args: []string{}, Env: []string{roleVariable + "=agent"}, CPU: -1}
	if ns != nil {
		o.Start = ns.Start
	}
	return o
}

// pair is a client and a server that listens.
type pair struct {
	ns             *netns.Namespace
	client, server *Agent
}

// newPair starts both in a namespace of their own; host is where the server
// listens.
func newPair(t testing.TB, host string) pair {
	t.Helper()
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "load")
	p := pair{ns: ns, client: startAgent(t, agentOptions(ns)), server: startAgent(t, agentOptions(ns))}
	if err := p.server.Listen(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(host), 0)); err != nil {
		t.Fatal(err)
	}
	return p
}

// spec is a short run against the pair's server.
func (p pair) spec(workload string) Spec {
	return Spec{Workload: workload, Target: p.server.Address(), Duration: 200 * time.Millisecond,
		Warmup: 50 * time.Millisecond, Stall: 20 * time.Second}
}

func startAgent(t testing.TB, o AgentOptions) *Agent {
	t.Helper()
	a, err := StartAgent(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}
