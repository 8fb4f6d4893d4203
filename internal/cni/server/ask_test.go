// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// listening listens and gives each request to do.
func listening(t *testing.T, do func(*Call)) (path string) {
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

// TestAskCarriesAll sends a request with all that there can be, and gets an answer of several packets.
func TestAskCarriesAll(t *testing.T) {
	sent := Request{Version: "1 (modified)", Layout: "9", Environment: map[string]string{}, Config: []byte("{\"a\":\"\x00=\"}")}
	for _, name := range Variables() {
		sent.Environment[name] = "value=" + name
	}
	want := Answer{Stdout: bytes.Repeat([]byte("out"), 100000), Stderr: bytes.Repeat([]byte("err"), 50000), Exit: 7}
	got := make(chan Request, 1)
	path := listening(t, func(c *Call) {
		defer c.Close()
		got <- c.Request
		if err := c.Answer(want); err != nil {
			t.Error(err)
		}
	})
	answer, err := ask(t.Context(), path, sent)
	if err != nil {
		t.Fatal(err)
	}
	if r := <-got; !reflect.DeepEqual(r, sent) {
		t.Errorf("sent %+v, got %+v", sent, r)
	}
	if !reflect.DeepEqual(answer, want) {
		t.Errorf("got an answer of %d and %d bytes, exit %d", len(answer.Stdout), len(answer.Stderr), answer.Exit)
	}
}

// TestAskErrors has agents that do nothing, or not all: the error names the agent.
func TestAskErrors(t *testing.T) {
	before := answerTime
	answerTime = time.Second
	t.Cleanup(func() { answerTime = before })
	part := Answer{Stdout: []byte("x")}.head()
	for name, test := range map[string]struct {
		do   func(*Call)
		want string // empty: declined
	}{
		"declines":            {func(c *Call) { _ = c.Decline(); c.Close() }, ""},
		"ends":                {func(c *Call) { c.Close() }, "ended before its answer"},
		"hangs":               {func(*Call) {}, "gives no answer within 1s"},
		"answers in part":     {func(c *Call) { _ = c.write(part); c.Close() }, "ended before its answer"},
		"answers without end": {func(c *Call) { _ = c.write(part) }, "gives no answer within 1s"},
		"answers something":   {func(c *Call) { _ = c.write([]byte("x")); c.Close() }, "ended before its answer"},
		"answers 4 GiB":       {func(c *Call) { _ = c.write([]byte("\x00\xff\xff\xff\xff\xff\xff\xff\xff")) }, "ended before its answer"},
	} {
		t.Run(name, func(t *testing.T) {
			path := listening(t, test.do)
			_, err := ask(t.Context(), path, Request{})
			if declined := errors.Is(err, errDeclined); declined != (test.want == "") {
				t.Errorf("declined %v: %v", declined, err)
			}
			if test.want != "" && !strings.Contains(fmt.Sprint(err), "the agent at "+path+" "+test.want) {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, err := ask(t.Context(), filepath.Join(t.TempDir(), "none"), Request{}); err == nil {
		t.Error("an answer without an agent")
	}
}

// TestCancelledAsk ends the context of a request: the agent learns of it, and its answer arrives.
func TestCancelledAsk(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	path := listening(t, func(c *Call) {
		defer c.Close()
		waiting, end := c.Context(context.WithoutCancel(ctx))
		defer end()
		cancel()
		<-waiting.Done()
		if err := c.Answer(Answer{Stdout: []byte("undone"), Exit: 1}); err != nil {
			t.Error(err)
		}
	})
	answer, err := ask(ctx, path, Request{})
	if err != nil || string(answer.Stdout) != "undone" || answer.Exit != 1 {
		t.Errorf("answer %+v, %v", answer, err)
	}
}

// TestAwaitOfHungAgent has an agent not answer: the wait for policies ends with its context all the same.
func TestAwaitOfHungAgent(t *testing.T) {
	before := lateTime
	lateTime = 0
	t.Cleanup(func() { lateTime = before })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	path := listening(t, func(*Call) {})
	if err := AwaitPolicies(ctx, path, Request{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
}
