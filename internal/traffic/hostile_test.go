// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// closedWithin checks that the other end closes a connection, whatever it says
// before.
func closedWithin(t *testing.T, what string, conn net.Conn, d time.Duration) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(d))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: the connection is open after %v", what, d)
	}
}

// TestHostileStranger sends what no peer would: each is turned away, and a peer
// from elsewhere is served all the while.
func TestHostileStranger(t *testing.T) {
	t.Parallel()
	for what, says := range map[string]string{
		"garbage":     strings.Repeat("\x00\xff\n", 100),
		"a huge line": strings.Repeat("x", 1<<20),
		"deep JSON":   strings.Repeat("[", maxLine-1) + "\n",
		"no proof":    "{}\n",
		"a command":   `{"id":1,"op":"listen"}` + "\n",
	} {
		m := newMachines(t, "10.0.0.1", Limits{})
		conn, err := testkit.Dial(m.near, "tcp", m.address.String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, says)
		closedWithin(t, what, conn, 3*time.Second)
		_ = conn.Close()
		m.listening(t)
	}
}

// TestHostileSlow opens as many connections as an address may, and sends a byte
// now and then: they are closed in time, and then the address may try again.
func TestHostileSlow(t *testing.T) {
	t.Parallel()
	m := newMachines(t, "10.0.0.1", Limits{})
	var slow []net.Conn
	for range maxStrangersEach {
		conn, err := testkit.Dial(m.near, "tcp", m.address.String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		slow = append(slow, conn)
		go func() {
			for {
				if _, err := conn.Write([]byte("{")); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}()
	}
	if _, err := m.dial(t, token); err == nil || !strings.Contains(err.Error(), errStrangers.Error()) {
		t.Errorf("beside slow connections: error is %v", err)
	}
	for _, conn := range slow {
		closedWithin(t, "slow", conn, handshakeTimeout+3*time.Second)
	}
	m.listening(t)
}

// TestHostilePeer sends, as a peer, what the client does not.
func TestHostilePeer(t *testing.T) {
	t.Parallel()
	m := newMachines(t, "10.0.0.1", Limits{})
	for _, says := range []string{
		`{"id":1,"op":"run","spec":{"workload":"tcp_rr","target":"10.0.0.2:22","duration":1}}`,
		`{"id":1,"op":"exec"}`, `{"op":"listen","address":7}`, "x", strings.Repeat("x", maxLine+1),
	} {
		var conn net.Conn
		testkit.Eventually(t, 5*time.Second, func() (err error) { // the last session ends
			if conn, err = testkit.Dial(m.near, "tcp", m.address.String()); err != nil {
				return err
			}
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err = introduce(newLines(conn, maxReply), token); err != nil {
				_ = conn.Close()
			}
			return err
		})
		_, _ = io.WriteString(conn, says+"\n")
		closedWithin(t, says[:1], conn, 3*time.Second)
		_ = conn.Close()
	}
}

// TestHostileListen asks for another address to listen on, and for others to
// serve: it gets what everybody gets.
func TestHostileListen(t *testing.T) {
	t.Parallel()
	m := newMachines(t, "10.0.0.1", Limits{})
	p, err := m.dial(t, token)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.call(t.Context(), command{Op: opListen, Address: netip.MustParseAddrPort("127.0.0.1:7777"),
		Guard: &guard{Peer: netip.MustParseAddr("10.0.0.3")}})
	if err != nil || r.Address.Addr() != m.address.Addr() || r.Address.Port() == 7777 {
		t.Errorf("it listens on %v, %v", r.Address, err)
	}
	for _, bad := range []string{"10.0.0.1:7777", "10.0.0.9:0", "127.0.0.1:0"} {
		if err := p.Listen(t.Context(), netip.MustParseAddrPort(bad)); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// TestHostileData connects to the data port as another machine does, with headers
// beyond the limits, and with more connections than a run has.
func TestHostileData(t *testing.T) {
	t.Parallel()
	m := newMachines(t, "0.0.0.0", Limits{Duration: time.Second, Flows: 2})
	p := m.listening(t)
	stranger, err := testkit.Dial(m.far, "tcp", p.Address().String()) // from 10.0.0.1 itself
	if err != nil {
		t.Fatal(err)
	}
	closedWithin(t, "another address", stranger, 3*time.Second)
	_ = stranger.Close()
	far := startAgent(t, agentOptions(m.far))
	spec := Spec{Workload: UDPStream, Target: p.Address(), Limit: 1, Stall: 300 * time.Millisecond}
	if _, err := far.Run(t.Context(), spec); err == nil {
		t.Error("another address: UDP is served")
	}
	near := startAgent(t, agentOptions(m.near))
	for _, beyond := range []Spec{
		{Duration: 2 * time.Second}, {Limit: 1 << 41}, {Duration: time.Second, Flows: 3}, {Duration: 1, Warmup: time.Minute},
		{Duration: 1, Stall: time.Minute}, {Limit: 5, Congestion: "no-such"},
	} {
		for _, workload := range []string{TCPStream, UDPStream} {
			beyond.Workload, beyond.Target = workload, p.Address()
			if beyond.Congestion != "" && workload == UDPStream {
				continue
			}
			if _, err := near.Run(t.Context(), beyond); err == nil {
				t.Errorf("%+v is served", beyond)
			}
			if err := p.Limits().Check(beyond); err == nil && beyond.Congestion == "" {
				t.Errorf("%+v passes the limits", beyond)
			}
		}
	}
	var open []net.Conn
	for range (&guard{Limits: Limits{Flows: 2}}).most() + 1 {
		conn, err := testkit.Dial(m.near, "tcp", p.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		open = append(open, conn)
	}
	closedWithin(t, "one too many", open[len(open)-1], 2*time.Second)
	closedWithin(t, "no header", open[0], headerTimeout+2*time.Second)
	spec = Spec{Workload: TCPRR, Target: p.Address(), Limit: 10}
	testkit.Eventually(t, 5*time.Second, func() error {
		_, err := near.Run(t.Context(), spec)
		return err
	})
}

// TestLifetime lets a client hang on for longer than its run may last.
func TestLifetime(t *testing.T) {
	g := &guard{Limits: Limits{Duration: 40 * time.Second}}
	for want, spec := range map[time.Duration]Spec{
		headerTimeout + 9*time.Second:  {Duration: 5 * time.Second, Warmup: 2 * time.Second, Stall: time.Second},
		headerTimeout + 42*time.Second: {Limit: 5, Stall: time.Second},
	} {
		if got := g.Limits.lifetime(spec); got != want {
			t.Errorf("%+v may last %v, want %v", spec, got, want)
		}
	}
}

func TestDoor(t *testing.T) {
	d := newDoor()
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	for i := range maxStrangers {
		if err := d.enter(addr(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.enter(addr(1000)); !errors.Is(err, errStrangers) {
		t.Errorf("one too many: %v", err)
	}
	for i := range maxStrangers {
		d.leave(addr(i), false)
	}
	for i := range 2 * maxRemembered {
		if err := d.enter(addr(i)); err != nil {
			t.Fatal(err)
		}
		d.leave(addr(i), true)
	}
	if len(d.failures) > maxRemembered || len(d.strangers) > 0 || d.all != 0 {
		t.Errorf("%d failures, %d strangers, %d in all are remembered", len(d.failures), len(d.strangers), d.all)
	}
	last := addr(2*maxRemembered - 1)
	for range maxFailures - 1 {
		d.leave(last, d.enter(last) == nil)
	}
	if err := d.enter(last); !errors.Is(err, errFailures) {
		t.Errorf("after %d failures: %v", maxFailures, err)
	}
	f := d.failures[last]
	f.since = f.since.Add(-failureMemory)
	d.failures[last] = f
	if err := d.enter(last); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

func TestToken(t *testing.T) {
	made := NewToken()
	path := filepath.Join(t.TempDir(), "token")
	if err := WriteToken(path, made); err != nil {
		t.Fatal(err)
	}
	if err := WriteToken(path, made); !errors.Is(err, os.ErrExist) {
		t.Errorf("a token is written over another one: %v", err)
	}
	if got, err := ReadToken(path); err != nil || string(got) != string(made) || string(made) == string(NewToken()) {
		t.Errorf("read %q, %v", got, err)
	}
	secret := "not-so-very-secret"
	for name, spoil := range map[string]func() error{
		"0640":    func() error { return os.Chmod(path, 0o640) },
		"0604":    func() error { return os.Chmod(path, 0o604) },
		"7 bytes": func() error { return os.WriteFile(path, []byte(" "+secret[:7]+"\n"), 0o600) },
		"5000":    func() error { return os.WriteFile(path, []byte(strings.Repeat("a", 5000)), 0o600) },
		"no file": func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"no such": func() error { return os.RemoveAll(path) },
	} {
		_ = os.RemoveAll(path)
		if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadToken(path); err == nil || strings.Contains(err.Error(), secret[:7]) {
			t.Errorf("%s: read %q, %v", name, got, err)
		}
	}
}

// TestNoLeak checks what goes over the wire in a handshake.
func TestNoLeak(t *testing.T) {
	near, far := net.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := authenticate(newLines(far, maxLine), token)
		done <- err
	}()
	var g greeting
	l := newLines(near, maxReply)
	if err := l.read(&g); err != nil {
		t.Fatal(err)
	}
	// The server's own words do not pass as the client's.
	mine := nonce()
	if err := l.write(hello{Nonce: mine, Proof: prove(token, serverSigned, g.Nonce, mine)}); err != nil {
		t.Fatal(err)
	}
	var w welcome
	if err := l.read(&w); err != nil || w.Error != errToken.Error() || w.Proof != nil {
		t.Errorf("the answer is %+v, %v", w, err)
	}
	if err := <-done; !errors.Is(err, errToken) {
		t.Errorf("error is %v", err)
	}
	text, err := json.Marshal([]any{g, w, fmt.Sprint(prove(token, clientSigned, g.Nonce, mine))})
	if err != nil || strings.Contains(string(text), string(token)) {
		t.Errorf("%s, %v", text, err)
	}
}
