// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// agent listens and gives each request to do.
func agent(t *testing.T, do func(*Call)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "sock")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				if call, err := Receive(conn); err == nil {
					do(call)
				}
			}()
		}
	}()
	return path
}

func ask(ctx context.Context, t *testing.T, path string, r Request) (Answer, error) {
	t.Helper()
	a, err := Dial(path)
	if err != nil {
		return Answer{}, err
	}
	defer a.Close()
	return a.Ask(ctx, r, "/proc/self/ns/net")
}

// shortTimes makes the waits of this package short.
func shortTimes(t *testing.T) {
	claim, answer := claimTime, answerTime
	claimTime, answerTime = 100*time.Millisecond, 200*time.Millisecond
	t.Cleanup(func() { claimTime, answerTime = claim, answer })
}

// TestAskCarriesAll sends a request with all that there can be, and gets an answer of several packets.
func TestAskCarriesAll(t *testing.T) {
	sent := Request{Call: "c", Environment: map[string]string{}, Config: []byte("{\"a\":\"\x00=\"}")}
	for _, name := range Variables() {
		sent.Environment[name] = "value=" + name
	}
	want := Answer{Stdout: bytes.Repeat([]byte("out"), 100000), Stderr: bytes.Repeat([]byte("err"), 50000), Exit: 7}
	got := make(chan Request, 1)
	path := agent(t, func(c *Call) {
		defer c.Close()
		got <- c.Request
		if err := c.Begin(); err != nil {
			t.Error(err)
		}
		if err := c.Answer(want); err != nil {
			t.Error(err)
		}
	})
	answer, err := ask(t.Context(), t, path, sent)
	if err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.Call != sent.Call || !maps.Equal(r.Environment, sent.Environment) || !bytes.Equal(r.Config, sent.Config) {
		t.Errorf("sent %+v, got %+v", sent, r)
	}
	if answer.Exit != want.Exit || !bytes.Equal(answer.Stdout, want.Stdout) || !bytes.Equal(answer.Stderr, want.Stderr) {
		t.Errorf("got an answer of %d and %d bytes, exit %d", len(answer.Stdout), len(answer.Stderr), answer.Exit)
	}
}

// TestAskErrors has agents that do nothing, or not all, at each point: the error tells who does the verb.
func TestAskErrors(t *testing.T) {
	shortTimes(t)
	for name, test := range map[string]struct {
		do   func(*Call)
		want error
	}{
		"refuses":              {func(c *Call) { c.Close() }, ErrAlone},
		"never begins":         {func(*Call) {}, ErrAlone},
		"begins and ends":      {func(c *Call) { _ = c.Begin(); c.Close() }, ErrLost},
		"begins and hangs":     {func(c *Call) { _ = c.Begin() }, ErrHung},
		"answers in part":      {func(c *Call) { _ = c.Begin(); _, _ = c.conn.Write(Answer{Stdout: []byte("x")}.head()); c.Close() }, ErrLost},
		"answers without end":  {func(c *Call) { _ = c.Begin(); _, _ = c.conn.Write(Answer{Stdout: []byte("x")}.head()) }, ErrLost},
		"answers something":    {func(c *Call) { _ = c.Begin(); _, _ = c.conn.Write([]byte("x")); c.Close() }, ErrLost},
		"answers 4 GiB":        {func(c *Call) { _ = c.Begin(); _, _ = c.conn.Write([]byte("\x00\xff\xff\xff\xff\xff\xff\xff\xff")) }, ErrLost},
		"answers but is alone": {func(c *Call) { _, _ = c.conn.Write([]byte("x")); c.Close() }, ErrAlone},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ask(t.Context(), t, agent(t, test.do), Request{})
			if !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
	if _, err := ask(t.Context(), t, filepath.Join(t.TempDir(), "none"), Request{}); !errors.Is(err, ErrAlone) {
		t.Errorf("without an agent: %v", err)
	}
	path := agent(t, func(c *Call) { c.Close() })
	if _, err := ask(t.Context(), t, path, Request{Config: []byte(strings.Repeat(" ", MaxRequest))}); !errors.Is(err, ErrAlone) {
		t.Errorf("a large request: %v", err)
	}
}

// TestClaimIsTakenOnce has an agent begin too late: it is refused.
func TestClaimIsTakenOnce(t *testing.T) {
	shortTimes(t)
	begun := make(chan error, 1)
	late := make(chan struct{})
	path := agent(t, func(c *Call) {
		<-late
		begun <- c.Begin()
	})
	a, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Ask(t.Context(), Request{}, ""); !errors.Is(err, ErrAlone) {
		t.Fatal(err)
	}
	close(late)
	if err := <-begun; err == nil {
		t.Error("both have the claim")
	}
}

// TestCancelledAsk ends the context of a request: the agent learns of it, and its answer arrives.
func TestCancelledAsk(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	path := agent(t, func(c *Call) {
		defer c.Close()
		if err := c.Begin(); err != nil {
			t.Error(err)
		}
		cancel()
		<-c.Gone()
		if err := c.Answer(Answer{Stdout: []byte("undone"), Exit: 1}); err != nil {
			t.Error(err)
		}
	})
	answer, err := ask(ctx, t, path, Request{})
	if err != nil || string(answer.Stdout) != "undone" || answer.Exit != 1 {
		t.Errorf("answer %+v, %v", answer, err)
	}
}
