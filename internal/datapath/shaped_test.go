// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/qdisc"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestShaped has a limit at the host's device of a pod that lets next to nothing pass: what is sent to the pod, by its
// own address, by a service, and from outside, must come by it and be dropped there.
func TestShaped(t *testing.T) {
	testkit.RequireTool(t, "tc")
	onLinks(t, "veth, bridge, netkit, netkit-l2, tap", func(t *testing.T, mode linkMode) {
		n, d := mode.make(t), openTest(t)
		far := n.wire(t)
		shaped := n.attachment(0)
		shaped.Shaped = true
		for i, a := range []EndpointSpec{shaped, n.attachment(1)} {
			if _, change, err := d.Endpoints().Put(t.Context(), a); err != nil || change != Added {
				t.Fatalf("AddEndpoint %d: %v, %v", i, change, err)
			}
		}
		if _, change, err := d.Endpoints().Put(t.Context(), shaped); err != nil || change != Unchanged {
			t.Errorf("Put again: %v, %v", change, err)
		}
		must(d.Uplinks().Put(t.Context(), n.host, "wire"))(t)
		server := listenUDP(t, n.pods[0], podA4, 1)[0]
		vip := netip.MustParseAddrPort(near4 + ":5201")
		s := service.Service{Frontend: vip, Protocol: service.UDP, Backends: service.Backends(server.addr)}
		must2(d.Services().Put(t.Context(), service.CLI, s))(t)
		for name, c := range map[string]struct {
			from *netns.Namespace
			to   netip.AddrPort
		}{
			"straight": {n.pods[1], server.addr}, "service": {n.pods[1], vip}, "outside": {far, vip},
		} {
			t.Run(name, func(t *testing.T) { flood(t, n, server, c.from, c.to) })
		}
		// Without it, the queue is passed by where there is a shorter way.
		if _, change, err := d.Endpoints().Put(t.Context(), n.attachment(0)); err != nil || (change == Updated) != strings.Contains("veth bridge netkit netkit-l2", mode.name) {
			t.Errorf("Put without a queue: %v, %v", change, err)
		}
	})
	t.Run("macvlan", func(t *testing.T) {
		n, d := slaves(t), openTest(t)
		a := n.attachment(0)
		a.Shaped = true
		if _, _, err := d.Endpoints().Put(t.Context(), a); err == nil || !strings.Contains(err.Error(), "no device on the host") {
			t.Errorf("Put: error %v", err)
		}
	})
}

// flood sends more at once than a limit lets through, which is one kilobyte per second and five datagrams at first.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say who calls whom
func flood(t *testing.T, n network, server *counter, from *netns.Namespace, to netip.AddrPort) {
	t.Helper()
	const count = 50
	conn := must(testkit.Dial(from, "udp", to.String()))(t)
	defer conn.Close()
	send := func() {
		must(conn.Write(make([]byte, 1000)))(t)
	}
	send() // neighbours find each other
	server.received(t)
	succeed(t, qdisc.SetLimit(n.host, "va", qdisc.Limit{Rate: 8_000, Burst: 44_000}))
	defer func() {
		if err := qdisc.SetLimit(n.host, "va", qdisc.Limit{}); err != nil {
			t.Error(err)
		}
	}()
	for range count {
		send()
	}
	const waiting = 5 // at most, in tbf; 2 in fq
	sent, dropped := 0, 0
	testkit.Eventually(t, time.Second, func() error { // on a busy machine packets reach the queue later
		sent, dropped = n.queued(t)
		if sent+dropped < count-2-waiting {
			return fmt.Errorf("the queue passed %d packets and dropped %d of %d", sent, dropped, count)
		}
		return nil
	})
	if got := len(server.received(t)); sent == 0 || dropped < count/2 || got > count-dropped {
		t.Errorf("the queue passed %d packets and dropped %d; %d arrived", sent, dropped, got)
	}
}

// queued returns the packets that the queues of the host's first device passed and dropped.
func (n network) queued(t *testing.T) (sent, dropped int) {
	t.Helper()
	stats := n.tc(t, "-s qdisc show dev va")
	// The program before queue fq counts at clsact, which queues nothing.
	for _, found := range regexp.MustCompile(`qdisc (\w+)[^\n]*\n *Sent \d+ bytes (\d+) pkt \(dropped (\d+)`).FindAllStringSubmatch(stats, -1) {
		passed, _ := strconv.Atoi(found[2])
		drops, _ := strconv.Atoi(found[3])
		dropped += drops
		if found[1] != "clsact" {
			sent += passed
		}
	}
	return sent, dropped
}

// tc runs tc(8) on the host.
func (n network) tc(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("tc", append([]string{"-n", n.host.Name()}, strings.Fields(command)...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("tc %s: %v: %s", command, err, out)
	}
	return string(out)
}
