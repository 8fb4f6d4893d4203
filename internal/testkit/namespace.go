// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"mustang/internal/nl"
)

// namespacePrefix starts the names of all namespaces that tests make; the
// process's id and a dash follow.
const namespacePrefix = "mst-test-"

// Namespace creates a network namespace named mst-test-PID-N-HINT with its
// loopback device up, which is gone when the test is over.
func Namespace(t testing.TB, hint string) *nl.Namespace {
	t.Helper()
	RequireRoot(t)
	for i := 1; ; i++ {
		namespace, err := nl.CreateNamespace(fmt.Sprintf("%s%d-%d-%s", namespacePrefix, os.Getpid(), i, hint))
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nl.DeleteNamespace(namespace.Name()); err != nil {
				t.Error(err)
			}
			if err := namespace.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
				t.Error(err)
			}
		})
		return namespace
	}
}

// CheckLeaks runs the tests of m for TestMain, which passes the result to
// os.Exit. It fails if they leave a namespace behind. First it clears what test
// processes that were killed have left.
func CheckLeaks(m *testing.M) int {
	if err := clearDead(); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
	}
	code := m.Run()
	names, err := nl.ListNamespaces(fmt.Sprintf("%s%d-", namespacePrefix, os.Getpid()))
	if err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		return 1
	}
	if len(names) == 0 {
		return code
	}
	fmt.Fprintln(os.Stderr, "testkit: namespaces left behind:", strings.Join(names, " "))
	for _, name := range names {
		_ = nl.DeleteNamespace(name)
	}
	return 1
}

// clearDead deletes the namespaces of test processes that are no more.
func clearDead() error {
	names, err := nl.ListNamespaces(namespacePrefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		owner, _, _ := strings.Cut(strings.TrimPrefix(name, namespacePrefix), "-")
		pid, err := strconv.Atoi(owner)
		if err != nil {
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := nl.DeleteNamespace(name); err != nil {
			return err
		}
	}
	return nil
}

// closeAtCleanup closes what a helper opened when the test is over.
func closeAtCleanup(t testing.TB, closer io.Closer) {
	t.Cleanup(func() { _ = closer.Close() })
}
