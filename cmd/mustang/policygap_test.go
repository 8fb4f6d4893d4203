// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/kept"
	"mustang/internal/testkit"
)

// gapPolicies are sets with the same effect on pods a and b, but with different rules, identities and port tables: b
// may send to ports from 1024 on, except gapDenied.
func gapPolicies() []string {
	policy := func(name, rules string) string {
		return "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: " + name +
			"}, spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress], ingress: [" + rules + "]}}\n---\n"
	}
	const b = "from: [{podSelector: {matchLabels: {app: b}}}]"
	const block = "from: [{ipBlock: {cidr: 192.168.0.0/16, except: [192.168.99.0/24]}}]"
	const ports, udp = "ports: [{port: 1024, endPort: 65535}]", ", ports: [{protocol: UDP, port: 5000}]"
	return []string{
		policy("one", "{"+b+", "+ports+"}"),
		policy("one", "{"+b+", "+ports+"}, {"+b+udp+"}") + policy("two", "{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}"),
		policy("two", "{"+block+", "+ports+"}, {"+block+udp+"}"),
		policy("many", "{"+b+", "+ports+
			"}, {from: [{namespaceSelector: {matchLabels: {team: x}}}]}, {from: [{ipBlock: {cidr: 172.16.0.0/12}}]}"),
	}
}

const gapDenied = killPodA + ":4000" // a UDP port of pod a that each set of gapPolicies denies to pod b

// TestPolicyChangesWithoutGap has pod b send traffic that every set of policies denies, and make connections that every
// set allows, while sets and pods change. None of the former arrives, and none of the latter is refused.
func TestPolicyChangesWithoutGap(t *testing.T) {
	t.Parallel()
	n := newKillNetwork(t)
	n.root = kept.Root(t)
	a, b := n.pods[0], n.pods[1]
	var applies []string
	for i, text := range gapPolicies() {
		path := filepath.Join(t.TempDir(), fmt.Sprint(i, ".yaml"))
		testkit.Succeed(t, os.WriteFile(path, []byte("---\n"+text), 0o600))
		applies = append(applies, "policy apply --file="+path)
	}
	n.runAll([]string{applies[0], addLabelled})
	var server net.PacketConn
	testkit.Succeed(t, a.Do(func() (err error) {
		server, err = net.ListenPacket("udp4", gapDenied)
		return err
	}))
	defer server.Close()
	var arrived, denied, allowed atomic.Uint64
	go func() {
		for _, _, err := server.ReadFrom(make([]byte, 1)); err == nil; _, _, err = server.ReadFrom(make([]byte, 1)) {
			arrived.Add(1)
		}
	}()
	echo := testkit.Echo(t, a, "tcp", killPodA+":0").String()
	ctx, cancel := context.WithCancel(t.Context())
	var clients errgroup.Group
	clients.Go(func() error {
		for ; ctx.Err() == nil; denied.Add(1) {
			conn, err := testkit.Dial(b, "udp", gapDenied)
			if err != nil {
				return err
			}
			_, err = conn.Write([]byte("x"))
			if err := errors.Join(err, conn.Close()); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
			time.Sleep(200 * time.Microsecond)
		}
		return nil
	})
	clients.Go(func() error {
		for ; ctx.Err() == nil; allowed.Add(1) {
			if _, err := testkit.RoundTrip(t, b, "tcp", echo, []byte("gap?")); err != nil {
				return fmt.Errorf("an allowed connection: %w", err)
			}
		}
		return nil
	})
	for i := range testkit.Repeats(6, 100) {
		labels := fmt.Sprintf(",n=%d --host-netns=HOST", i)
		n.runAll([]string{
			strings.Join(applies, "|"), addOnParent + " --label=app=b", "ep rm " + killPodC,
			"ep add --netns=PODA --label=app=a" + labels, "ep add --netns=PODB --label=app=b" + labels,
		})
	}
	cancel()
	testkit.Succeed(t, clients.Wait())
	testkit.Check(t, arrived.Load() == 0, "%d of %d denied datagrams arrived", arrived.Load(), denied.Load())
	testkit.Check(t, denied.Load() >= 1000 && allowed.Load() >= 100,
		"%d denied attempts, %d allowed: the test shows nothing", denied.Load(), allowed.Load())
}

// TestPodReachesItselfThroughService denies a pod all traffic. The pod still reaches itself at the address of a service
// whose backend it is.
func TestPodReachesItselfThroughService(t *testing.T) {
	t.Parallel()
	n := newKillNetwork(t)
	n.root = kept.Root(t)
	n.ip("-n PODA route add default via 192.168.10.1")
	n.runAll([]string{
		"ep add --netns=PODA --host-netns=HOST --namespace=default|ep add --netns=PODB --host-netns=HOST --namespace=other",
		addService + "|policy apply --file=OTHER",
	})
	testkit.Must(testkit.RoundTrip(t, n.pods[0], "tcp", killFrontend, []byte("own")))(t)
	err := n.pods[1].Do(func() error {
		conn, err := net.DialTimeout("tcp", killFrontend, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	testkit.Check(t, err != nil, "another pod reaches it")
}
