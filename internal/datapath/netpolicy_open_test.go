// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// TestPolicyOfOpenConnections opens TCP connections before the first policy: whichever end has the higher port, if the client's is ephemeral: what the policy
// allows lives on, and what it denies ends.
func TestPolicyOfOpenConnections(t *testing.T) {
	onLinks(t, "veth, bridge, macvlan", func(t *testing.T, mode linkMode) {
		n, d := mode.make(t), openTest(t)
		n.labelled(t, d)
		client := 40000
		for _, f := range families() {
			for _, port := range []string{"10000", "50000"} {
				t.Run(f.name+" to port "+port, func(t *testing.T) {
					server := testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(f.pod, port))
					testOpenConnections(t, d, func() net.Conn {
						client++
						return n.openFrom(t, client, server)
					})
				})
			}
		}
	})
}

// openFrom connects pod b from a port, and uses the connection.
func (n network) openFrom(t *testing.T, port int, to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	succeed(t, n.pods[1].Do(func() (err error) {
		dialer := net.Dialer{Timeout: 20 * time.Second, LocalAddr: &net.TCPAddr{Port: port}}
		conn, err = dialer.Dial("tcp", to.String())
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	greeting := []byte{0}
	for greeting[0] != '\n' {
		must(io.ReadFull(conn, greeting))(t)
	}
	succeed(t, exchanged(conn))
	return conn
}

func exchanged(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte("open")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

func testOpenConnections(t *testing.T, d *Datapath, open func() net.Conn) {
	const denyEgressA = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: e}, spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}}`
	ends := func(conn net.Conn, reason string) {
		t.Helper()
		before := counts(t, d)[reason]
		must(conn.Write([]byte("more")))(t)
		testkit.Eventually(t, 20*time.Second, func() error {
			if counts(t, d)[reason] == before {
				return fmt.Errorf("no %s", reason)
			}
			return nil
		})
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if n, _ := conn.Read(make([]byte, 4)); n > 0 {
			t.Errorf("%s, but there is an answer", reason)
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	lives := func(conn net.Conn) {
		t.Helper()
		if err := exchanged(conn); err != nil {
			t.Error(err)
		}
	}
	applyPolicies(t, d)
	conn := open()
	applyPolicies(t, d, fromBToA)
	lives(conn)
	applyPolicies(t, d, denyIngressA)
	ends(conn, "drop_policy_ingress")
	for _, c := range []struct{ policy, reason string }{{denyIngressA, "drop_policy_ingress"}, {denyEgressB, "drop_policy_egress"}, {denyEgressA, ""}} {
		applyPolicies(t, d)
		conn := open()
		if applyPolicies(t, d, c.policy); c.reason == "" {
			lives(conn)
		} else {
			ends(conn, c.reason)
		}
	}
	applyPolicies(t, d)
	if left := len(listed(t, d)); left > 0 {
		t.Errorf("%d ports that pods listen on are left", left)
	}
}

// listed returns the rows of ports that pods listened on.
func listed(t *testing.T, d *Datapath) (keys [][8]byte) {
	t.Helper()
	var key, value [8]byte
	rows := d.objects.Policies["policy_ports"].Iterate()
	for rows.Next(&key, &value) {
		if key[3]&0x80 != 0 {
			keys = append(keys, key)
		}
	}
	succeed(t, rows.Err())
	return keys
}
