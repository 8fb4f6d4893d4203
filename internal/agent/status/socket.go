// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lock"
)

// DefaultDir is the directory of an agent's sockets, and SocketName the file name of its status socket.
const (
	DefaultDir = "/run/mustang"
	SocketName = "agent.sock"
)

// timeout bounds a request. An answer can wait for a round of the agent, and the round for a lock.
const timeout = 30 * time.Second

// Claim makes the caller the only agent with sockets in a directory, until it unlocks that or dies. Like [lock.Take],
// it waits for an agent that ends. If an agent answers, it fails at once.
func Claim(ctx context.Context, dir string) (*lock.Lock, error) {
	if err := running(ctx, dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lock.Take(ctx, dir, nil)
	if err != nil {
		return nil, cmp.Or(running(ctx, dir), err) // it had the lock, and answers by now
	}
	return lock, nil
}

func running(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	process, err := Ask(ctx, dir, "/process", 64)
	if err != nil {
		return nil
	}
	return fmt.Errorf("an agent already runs on this node, process %s (%s); its state: mustang agent status", process,
		filepath.Join(dir, SocketName))
}

// ErrNoAgent means that no agent answers.
var ErrNoAgent = errors.New("no agent answers")

// ServeSocket serves requests at a socket in a directory, which only root can open, until the context ends. At /process
// it returns its process number. It replaces an existing socket: use [Claim] first, to find an agent there.
func ServeSocket(ctx context.Context, dir string, handler http.Handler) error {
	path := filepath.Join(dir, SocketName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("listen at %s: %w", path, err)
	}
	_ = os.Remove(path) // else Listen fails
	listener, err := (&net.ListenConfig{Control: ownerOnly}).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer listener.Close()
	mux := http.NewServeMux()
	mux.Handle("/", handler)
	mux.HandleFunc("GET /process", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, os.Getpid()) })
	return serveUntil(ctx, listener, &http.Server{Handler: mux, ReadTimeout: timeout, WriteTimeout: 2 * timeout})
}

func ownerOnly(_, _ string, socket syscall.RawConn) (err error) {
	failed := socket.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
	return errors.Join(failed, err)
}

// ServeAt lets a handler answer at a listener, which it closes, until the context ends.
func ServeAt(ctx context.Context, listener net.Listener, handler http.Handler) error {
	const probe = 5 * time.Second // a request is short
	return serveUntil(ctx, listener,
		&http.Server{Handler: handler, ReadTimeout: probe, WriteTimeout: probe, IdleTimeout: lateAfter})
}

// Serve is like ServeAt, at an address such as "192.0.2.1:10256". Errors: the errors of net.Listen.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return ServeAt(ctx, listener, handler)
}

func serveUntil(ctx context.Context, listener net.Listener, server *http.Server) error {
	server.MaxHeaderBytes = 1 << 13
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Ask sends a request such as "/status?kind=service" to the agent whose socket is in a directory, and returns the
// answer. Errors: [ErrNoAgent]; an error from the agent; an answer longer than limit bytes.
func Ask(ctx context.Context, dir, request string, limit int64) ([]byte, error) {
	path := filepath.Join(dir, SocketName)
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}
	asked, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+request, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: transport, Timeout: timeout}).Do(asked)
	for _, none := range []error{fs.ErrNotExist, unix.ECONNREFUSED} {
		if errors.Is(err, none) {
			return nil, fmt.Errorf("%w at %s: %w", ErrNoAgent, path, none)
		}
	}
	var body []byte
	if err == nil {
		defer answer.Body.Close()
		body, err = io.ReadAll(io.LimitReader(answer.Body, limit+1))
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("query the agent at %s: %w", path, err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("query the agent at %s: the answer has more than %d bytes", path, limit)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("agent's answer: %s", body[:min(len(body), 500)])
	}
	return body, nil
}
