// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/testkit"
)

const denyAll = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny}, spec: {podSelector: {}, policyTypes: [Ingress]}}`

// TestDeliveredMark has senders that are no endpoints mark their packets as delivered: a policy holds against these all the same.
func TestDeliveredMark(t *testing.T) {
	testkit.RequireTool(t, "tc")
	senders := map[string]func(t *testing.T, n network, d *Datapath) (ns *netns.Namespace, source string){
		"another network's container": func(_ *testing.T, n network, _ *Datapath) (*netns.Namespace, string) { return n.pods[1], podB4 },
		"a pod that is no endpoint": func(t *testing.T, n network, d *Datapath) (*netns.Namespace, string) {
			must(d.Guards().Put(t.Context(), n.attachment(1)))(t)
			return n.pods[1], podB4
		},
		"a pod's own network namespace": nestedMacvlan,
	}
	for name, make := range senders {
		t.Run(name, func(t *testing.T) {
			n, d := routed(t), openTest(t)
			spec := n.attachment(0)
			spec.Pod = &policy.Pod{Namespace: "default", Name: "a"}
			must2(d.Endpoints().Put(t.Context(), spec))(t)
			from, source := make(t, n, d)
			victim := listenIn(t, n.pods[0], podA4)
			send := func() error { return sendUDP(from, source, victim) }
			testkit.Eventually(t, 10*time.Second, send)
			for _, args := range []string{"qdisc add dev eth0 clsact", "filter add dev eth0 egress protocol all u32 match u32 0 0 flowid 1:6d73"} {
				if out, err := exec.Command("tc", append([]string{"-n", from.Name()}, strings.Fields(args)...)...).CombinedOutput(); err != nil {
					t.Fatalf("tc %s: %v: %s", args, err, out)
				}
			}
			testkit.Eventually(t, 10*time.Second, send)
			applyPolicies(t, d, denyAll)
			before := counts(t, d)
			for range 3 {
				if err := send(); err == nil {
					t.Error("a packet arrives that the policy denies")
				}
			}
			if got := delta(t, d, before)["drop_policy_ingress"]; got != 3 {
				t.Errorf("drop_policy_ingress: %d", got)
			}
		})
	}
}

// nestedMacvlan is a network namespace that root of a macvlan pod has made, on a second device.
func nestedMacvlan(t *testing.T, n network, d *Datapath) (ns *netns.Namespace, source string) {
	t.Helper()
	pod, deep := testkit.Namespace(t, "macvlan"), testkit.Namespace(t, "deep")
	n.run(t, strings.NewReplacer("MACVLAN", pod.Name(), "DEEP", deep.Name()).Replace(`
		-n HOST link add up0 type veth peer name up1
		-n HOST link set up0 up
		-n HOST link set up1 up
		-n HOST link add mv0 link up0 type macvlan mode bridge
		-n HOST addr add 192.168.77.1/24 dev mv0
		-n HOST link set mv0 up
		-n HOST link add link up0 name eth0 netns MACVLAN type macvlan mode bridge
		-n MACVLAN addr add 192.168.77.10/24 dev eth0
		-n MACVLAN link set eth0 up
		-n MACVLAN link add link eth0 name eth0 netns DEEP type macvlan mode bridge
		-n DEEP link set eth0 up
		-n DEEP addr add 192.168.77.66/24 dev eth0
		-n DEEP route add default via 192.168.77.1`))
	must2(d.Endpoints().Put(t.Context(), EndpointSpec{Namespace: pod, IfName: "eth0", Host: n.host}))(t)
	return deep, "192.168.77.66"
}

// sendUDP sends a datagram, and returns an error unless it arrives.
func sendUDP(from *netns.Namespace, source string, to net.PacketConn) error {
	err := from.Do(func() error {
		conn, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}).Dial("udp", to.LocalAddr().String())
		if err != nil {
			return err
		}
		_, err = conn.Write([]byte("datagram"))
		return errors.Join(err, conn.Close())
	})
	if err != nil {
		return err
	}
	_ = to.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, _, err = to.ReadFrom(make([]byte, 100))
	return err
}
