// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/lock"
	"mustang/internal/testkit"
)

// serve answers at a socket of a directory until the function is called.
func serve(t *testing.T, dir string) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- ServeSocket(ctx, dir, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/ask" {
				http.Error(w, "no such question", http.StatusNotFound)
				return
			}
			_, _ = io.WriteString(w, "an answer")
		}))
	}()
	testkit.Eventually(t, 10*time.Second, func() error {
		_, err := Ask(t.Context(), dir, "/ask", 9)
		return err
	})
	return func() error { cancel(); return <-done }
}

// TestClaim refuses an agent beside one that answers, waits for one that ends, and takes the place of one that was
// killed.
func TestClaim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	stop := serve(t, dir)
	want := fmt.Sprintf("process %d (%s)", os.Getpid(), filepath.Join(dir, SocketName))
	_, err := Claim(t.Context(), dir)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), want), "beside an agent: %v", err)
	testkit.Succeed(t, stop())
	first := testkit.Must(Claim(t.Context(), dir))(t)
	var busy *lock.Error
	_, err = Claim(lock.Wait{Limit: 50 * time.Millisecond}.WithContext(t.Context()), dir)
	testkit.Check(t, errors.As(err, &busy), "beside one that does not answer: %v", err)
	time.AfterFunc(50*time.Millisecond, first.Unlock)
	second, err := Claim(t.Context(), dir)
	testkit.Require(t, err == nil, "after one that ends: %v", err)
	second.Unlock()
	hung := testkit.Must(net.Listen("unix", filepath.Join(dir, SocketName)))(t) // it takes connections, and answers none
	hung.(*net.UnixListener).SetUnlinkOnClose(false)
	for _, what := range []string{"one that hangs", "a socket of nobody"} {
		lock, err := Claim(t.Context(), dir)
		testkit.Require(t, err == nil, "%s: %v", what, err)
		lock.Unlock()
		_ = hung.Close()
	}
}

// TestServe answers only root, replaces the socket of a dead agent, and leaves nothing.
func TestServe(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(dir, SocketName)
	_, err := Ask(t.Context(), dir, "/ask", 9)
	testkit.Check(t, errors.Is(err, ErrNoAgent) && strings.Contains(err.Error(), path), "without an agent: %v", err)
	stop := serve(t, dir)
	for file, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, path: 0o600 | os.ModeSocket} {
		info, err := os.Lstat(file)
		testkit.Check(t, err == nil && info.Mode() == want, "%s has %v, %v, want %v", file, info.Mode(), err, want)
	}
	_, err = Ask(t.Context(), dir, "/ask", 8)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "more than 8 bytes"), "a long answer: %v", err)
	_, err = Ask(t.Context(), dir, "/other", 99)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "no such question"), "an error: %v", err)
	testkit.Succeed(t, stop())
	left, err := os.ReadDir(dir)
	testkit.Check(t, err == nil && len(left) == 0, "left: %v, %v", left, err)
	dead := testkit.Must(net.Listen("unix", path))(t)
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = dead.Close()
	_, err = Ask(t.Context(), dir, "/ask", 9)
	testkit.Check(t, errors.Is(err, ErrNoAgent), "a dead agent: %v", err)
	testkit.Succeed(t, serve(t, dir)())
	left, err = os.ReadDir(dir)
	testkit.Check(t, err == nil && len(left) == 0, "left after a dead agent: %v, %v", left, err)
}
