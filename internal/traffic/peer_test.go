// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// token is what both sides of these tests know.
var token = []byte("a-token-for-tests-1")

// machines are two namespaces with a wire between them, and a server on one.
type machines struct {
	near, far *nl.Namespace
	address   netip.AddrPort // of the server
	stop      func() error   // ends the server and returns its error
	mu        sync.Mutex
	notes     []string
}

// note collects what the server says.
func (m *machines) note(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notes = append(m.notes, text)
}

func (m *machines) noted() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.notes, "\n")
}

// newMachines starts a server that listens on an address of the far machine.
func newMachines(t *testing.T, listen string, limits Limits) *machines {
	t.Helper()
	m := &machines{near: testkit.Namespace(t, "near"), far: testkit.Namespace(t, "far")}
	if err := nl.AddWire(nl.WireEnd{Namespace: m.near, Name: "uplink"}, nl.WireEnd{Namespace: m.far, Name: "uplink"}, 1500); err != nil {
		t.Fatal(err)
	}
	for ns, last := range map[*nl.Namespace]string{m.near: "2", m.far: "1"} {
		if err := ns.Configure("uplink", nl.DeviceConfig{Up: true, Addresses: []netip.Prefix{
			netip.MustParsePrefix("10.0.0." + last + "/24"), netip.MustParsePrefix("fd00:1::" + last + "/64"),
		}}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan netip.AddrPort, 1), make(chan error, 1)
	go func() {
		ended <- m.far.Do(func() error {
			return Serve(ctx, ServeOptions{
				Listen: netip.AddrPortFrom(netip.MustParseAddr(listen), 0), Token: token, CPU: -1, Limits: limits,
				Agent: agentOptions(m.far), Ready: func(a netip.AddrPort) { ready <- a }, Note: m.note,
			})
		})
	}()
	m.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(5 * time.Second):
			return errors.New("the server goes on")
		}
	})
	t.Cleanup(func() {
		if err := m.stop(); err != nil {
			t.Error(err)
		}
		if notes := m.noted(); strings.Contains(notes, string(token)) {
			t.Errorf("the token is in the notes:\n%s", notes)
		}
	})
	select {
	case m.address = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	if m.address.Addr().IsUnspecified() {
		m.address = netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), m.address.Port())
	}
	return m
}

// dial connects as a peer.
func (m *machines) dial(t *testing.T, with []byte) (*Peer, error) {
	t.Helper()
	var p *Peer
	err := m.near.Do(func() (err error) {
		p, err = DialPeer(t.Context(), m.address, with)
		return err
	})
	if err == nil {
		t.Cleanup(func() { _ = p.Close() })
	} else if strings.Contains(err.Error(), string(with)) {
		t.Errorf("the token is in the error %q", err)
	}
	return p, err
}

// listening connects as a peer, and lets the server listen.
func (m *machines) listening(t *testing.T) *Peer {
	t.Helper()
	p, err := m.dial(t, token)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Listen(t.Context(), netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPeer runs every workload between two machines.
func TestPeer(t *testing.T) {
	for _, listen := range []string{"10.0.0.1", "fd00:1::1", "0.0.0.0"} {
		m := newMachines(t, listen, Limits{})
		client := startAgent(t, agentOptions(m.near))
		p := m.listening(t)
		if got := p.Address(); got.Addr() != m.address.Addr() || got.Port() == 0 || got.Port() == m.address.Port() {
			t.Errorf("%s: data goes to %s, control to %s", listen, got, m.address)
		}
		if _, err := p.Last(t.Context()); err == nil {
			t.Error("figures before the first run")
		}
		for _, tt := range []Spec{
			{Workload: TCPStream}, {Workload: TCPStream, Flows: 3}, {Workload: TCPRR},
			{Workload: UDPStream, Rate: 50e6}, {Workload: UDPStream, Flows: 3, Rate: 50e6},
			{Workload: UDPStream, Window: 16, Limit: 200}, {Workload: TCPStream, Limit: 1000},
		} {
			spec := tt
			spec.Target, spec.Duration, spec.Warmup = p.Address(), 100*time.Millisecond, 20*time.Millisecond
			if err := p.Limits().Check(spec); err != nil {
				t.Error(err)
			}
			got, err := client.Run(t.Context(), spec)
			if err != nil {
				t.Fatalf("%s, %d flows: %v", spec.Workload, spec.Flows, err)
			}
			served, err := p.Last(t.Context())
			if err != nil || served.Count != got.Count || got.Count == 0 || served.Local != p.Address() || got.Flows != spec.flows() {
				t.Errorf("%s: server's figures %+v, %v; client's %+v", spec.Workload, served, err, got)
			}
		}
		// The data port is closed with the session.
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, 5*time.Second, func() error {
			if conn, err := testkit.Dial(m.near, "tcp", p.Address().String()); err == nil {
				return errors.Join(errors.New("the data port is open"), conn.Close())
			}
			return nil
		})
	}
}

// TestPeerRefused connects with another token, until the server listens no more.
func TestPeerRefused(t *testing.T) {
	m := newMachines(t, "10.0.0.1", Limits{})
	wrong := []byte("another-token-for-tests")
	for i := range maxFailures {
		if _, err := m.dial(t, wrong); err == nil || err.Error() != fmt.Sprintf("peer %s: wrong token", m.address) {
			t.Errorf("try %d: error is %v", i, err)
		}
	}
	if _, err := m.dial(t, token); err == nil || !strings.Contains(err.Error(), "too many failed tries") {
		t.Errorf("after %d failures: error is %v", maxFailures, err)
	}
	if _, err := m.dial(t, []byte("short")); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("a short token: error is %v", err)
	}
}

// TestPeerBusy has a second peer while the first is there.
func TestPeerBusy(t *testing.T) {
	m := newMachines(t, "10.0.0.1", Limits{})
	first := m.listening(t)
	if _, err := m.dial(t, token); !errors.Is(err, ErrBusy) {
		t.Errorf("a second peer: error is %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 5*time.Second, func() error {
		_, err := m.dial(t, token)
		return err
	})
}

// TestPeerIdle says nothing for too long, and keeps a session by itself.
func TestPeerIdle(t *testing.T) {
	m := newMachines(t, "10.0.0.1", Limits{Idle: 200 * time.Millisecond})
	kept := m.listening(t)
	time.Sleep(600 * time.Millisecond)
	if _, err := kept.Last(t.Context()); err == nil || strings.Contains(err.Error(), "ended") {
		t.Errorf("a session that is kept: error is %v", err)
	}
	_ = kept.Close()
	var silent net.Conn
	testkit.Eventually(t, 5*time.Second, func() (err error) {
		if silent, err = testkit.Dial(m.near, "tcp", m.address.String()); err != nil {
			return err
		}
		_ = silent.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err = introduce(newLines(silent, maxReply), token); err != nil {
			_ = silent.Close()
		}
		return err
	})
	defer func() { _ = silent.Close() }()
	var last reply
	if err := newLines(silent, maxReply).read(&last); err != nil || last.Error == nil || !strings.Contains(last.Error.Message, "nothing heard") {
		t.Errorf("the last word to a silent peer is %+v, %v", last, err)
	}
}

// TestPeerStopped ends the server in a session, as Ctrl-C does.
func TestPeerStopped(t *testing.T) {
	m := newMachines(t, "10.0.0.1", Limits{})
	p := m.listening(t)
	client := startAgent(t, agentOptions(m.near))
	done := make(chan error, 1)
	go func() {
		_, err := client.Run(t.Context(), Spec{Workload: TCPStream, Target: p.Address(), Duration: 20 * time.Second, Stall: time.Second})
		done <- err
	}()
	time.Sleep(100 * time.Millisecond)
	if err := m.stop(); err != nil {
		t.Errorf("server: %v", err)
	}
	if err := awaitError(t, done); err == nil {
		t.Error("the run goes on")
	}
	<-p.ended
	if _, err := p.Last(t.Context()); err == nil || !strings.Contains(err.Error(), "the server was stopped") {
		t.Errorf("error is %v", err)
	}
}

// TestPeerVanished has a server whose answers are lost, and one that is another.
func TestPeerVanished(t *testing.T) {
	for name, says := range map[string]string{
		"is no mustang bench serve": "{}\n",
		"line that makes no sense":  "SSH-2.0-OpenSSH_9.2\n",
		"line of more than":         strings.Repeat("x", maxReply+1),
		"speaks version 9":          fmt.Sprintf("{\"magic\":%q,\"version\":9,\"nonce\":\"%s\"}\n", peerMagic, strings.Repeat("AAAA", 10)+"AAA="),
		"does not know the token":   fmt.Sprintf("{\"magic\":%q,\"version\":1,\"nonce\":\"%s\"}\n{\"proof\":\"AAAA\"}\n", peerMagic, strings.Repeat("AAAA", 10)+"AAA="),
		"connection closed":         "",
	} {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(says))
			if says != "" {
				_, _ = conn.Read(make([]byte, 1000))
			}
			_ = conn.Close()
		}()
		_, err = DialPeer(t.Context(), netip.MustParseAddrPort(listener.Addr().String()), token)
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") || bytes.Contains([]byte(err.Error()), token) {
			t.Errorf("%s: error is %v", name, err)
		}
		_ = listener.Close()
	}
	mute, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mute.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := DialPeer(ctx, netip.MustParseAddrPort(mute.Addr().String()), token); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a mute server: error is %v", err)
	}
}
