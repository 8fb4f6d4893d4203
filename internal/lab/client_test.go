// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// clientVariable makes the test's executable a client, which sends what it is
// asked to from where it was started. Socket translation reaches a lab's own
// processes only, so the test itself won't do.
const clientVariable = "MUSTANG_TEST_LAB_CLIENT"

// question is what a client is to send.
type question struct {
	Network string // tcp, udp or icmp
	Target  string // address, with a port unless it is icmp
	Size    int    // of the payload, in bytes
}

// answer is what it saw.
type answer struct {
	Seen  string // the client's address as the server sees it
	Peer  string // the server's address as the client sees it
	Error string
}

// client is a process in a lab.
type client struct {
	in  *json.Encoder
	out *json.Decoder
}

// startClient starts a client at a place, which ends with the test.
func startClient(t *testing.T, l *lab.Lab, place string) *client {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), clientVariable+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(place, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("client at %s: %v", place, err)
		}
	})
	return &client{json.NewEncoder(in), json.NewDecoder(out)}
}

func (c *client) ask(t *testing.T, q question) (a answer) {
	t.Helper()
	if err := errors.Join(c.in.Encode(q), c.out.Decode(&a)); err != nil {
		t.Fatal(err)
	}
	return a
}

// serveClient is the life of a client process.
func serveClient() int {
	here, err := nl.CurrentNamespace()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var q question
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return 0
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		var a answer
		if err := q.send(here, &a); err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return 1
		}
	}
}

// nobody stands for a test where there is none.
type nobody struct{ testing.TB }

func (nobody) Helper() {}

func (q question) send(here *nl.Namespace, a *answer) error {
	payload := make([]byte, q.Size)
	_, _ = rand.Read(payload)
	if q.Network == "icmp" {
		addr, err := netip.ParseAddr(q.Target)
		if err != nil {
			return err
		}
		return testkit.Ping(here, addr, q.Size)
	}
	conn, err := testkit.Dial(here, q.Network, q.Target)
	if err != nil {
		return err
	}
	a.Peer = conn.RemoteAddr().String()
	if err := conn.Close(); err != nil {
		return err
	}
	seen, err := testkit.RoundTrip(nobody{}, here, q.Network, q.Target, payload)
	a.Seen = seen.String()
	return err
}
