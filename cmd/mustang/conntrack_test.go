// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/testkit"
)

// TestConntrack opens a connection from one pod to another through a service, lists it, and deletes it.
func TestConntrack(t *testing.T) {
	t.Parallel()
	n := newKillNetwork(t)
	env := map[string]string{cli.EnvBPFRoot: n.root}
	do := func(want int, line string) (stdout, stderr string) {
		t.Helper()
		code, stdout, stderr := command(t, env, strings.Fields("conntrack "+line)...)
		if code != want || strings.Count(stderr, "\n") > 1 {
			t.Fatalf("%q: exit code %d, want %d: %s", line, code, want, stderr)
		}
		return stdout, stderr
	}
	list := func(flags string, want int) {
		t.Helper()
		stdout, _ := do(exitDone, "ls -o json "+flags)
		var got struct {
			Connections []struct{ Client, Service, State string }
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || len(got.Connections) != want {
			t.Fatalf("%q: %s, want %d connections; %v", flags, stdout, want, err)
		}
		if table, _ := do(exitDone, "ls "+flags); strings.Count(table, "\n") != 1+want {
			t.Errorf("%q: table\n%s", flags, table)
		}
	}
	list("", 0) // there is no datapath
	do(exitDone, "stats")
	do(exitDone, "flush --all")
	do(exitFailed, "timeouts")
	for line := range strings.SplitSeq(addPods+"|"+addTCP, "|") {
		n.run(line)
	}
	var conn net.Conn
	testkit.Eventually(t, 10*time.Second, func() error {
		return n.pods[1].Do(func() (err error) {
			conn, err = net.DialTimeout("tcp", killFrontend, time.Second)
			return err
		})
	})
	defer conn.Close()
	frontend := netip.MustParseAddrPort(killFrontend)
	for flags, want := range map[string]int{
		"": 1, "--client=" + killPodB: 1, "--client=" + killPodA: 0, "--service=" + killFrontend: 1, "--backend=" + killPodA: 1,
		"--service=" + frontend.Addr().String(): 1, "--protocol=udp": 0, "--state=established,syn": 1, "--state=closed": 0,
	} {
		list(flags, want)
	}
	stats, _ := do(exitDone, "stats -o json")
	var counted struct {
		Slots, Open   int
		LargestClient string `json:"largest_client"`
	}
	if err := json.Unmarshal([]byte(stats), &counted); err != nil || counted.Open != 1 || counted.LargestClient != killPodB || counted.Slots < 8192 {
		t.Errorf("stats %s; %v", stats, err)
	}
	if timeouts, _ := do(exitDone, "timeouts --closed=5s"); !strings.Contains(timeouts, "5s") || !strings.Contains(timeouts, "2h13m20s") {
		t.Errorf("time-outs\n%s", timeouts)
	}
	for _, line := range []string{
		"flush", "flush --all --client=" + killPodB, "flush --client=x", "ls --service=1.2.3.4:0", "ls --backend=:80", "ls --state=open", "ls --protocol=icmp",
	} {
		do(exitMisuse, line)
	}
	do(exitFailed, "timeouts --closed=0s")
	list("", 1)
	do(exitDone, "flush --protocol=udp")
	list("", 1)
	if out, _ := do(exitDone, "flush --backend="+killPodA); out != "connections deleted: 1\n" {
		t.Errorf("flush: %s", out)
	}
	list("", 0)
	// The open connection goes on.
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintln(conn, "more"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 5)); err != nil {
		t.Errorf("the connection does not go on: %v", err)
	}
	list("", 1)
}
