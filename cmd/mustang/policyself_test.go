// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"testing"
	"time"

	"mustang/internal/datapath/kept"
	"mustang/internal/testkit"
)

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
	_, err := testkit.RoundTrip(t, n.pods[0], "tcp", killFrontend, []byte("own"))
	testkit.Check(t, err == nil, "%v", err)
	if err := n.pods[1].Do(func() error {
		conn, err := net.DialTimeout("tcp", killFrontend, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}); err == nil {
		t.Error("another pod reaches it")
	}
}
