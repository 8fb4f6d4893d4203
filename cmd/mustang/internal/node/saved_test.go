// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mustang/internal/lock"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func services(frontends ...string) (all []service.Service) {
	for _, f := range frontends {
		all = append(all, service.Service{Frontend: netip.MustParseAddrPort(f),
			Backends: service.Backends(netip.MustParseAddrPort("10.1.0.1:80"))})
	}
	return all
}

// want compares the saved services, and the other files of the directory.
func want(t *testing.T, f savedFile, wanted []service.Service) {
	t.Helper()
	have, err := f.read()
	if c := service.Diff(have, wanted); err != nil || len(have) != len(wanted) || c.Unchanged != len(wanted) {
		t.Errorf("saved %v, %v, want %v", have, err, wanted)
	}
	entries, err := os.ReadDir(filepath.Dir(string(f)))
	testkit.Check(t, err == nil && len(entries) == 1, "in the directory: %v, %v", entries, err)
	info, err := os.Stat(string(f))
	testkit.Check(t, err == nil && info.Mode() == 0o600, "mode %v, %v", info, err)
}

func TestSavedReplace(t *testing.T) {
	f := savedFile(filepath.Join(t.TempDir(), "state", "services.json"))
	_, err := f.read()
	testkit.Check(t, errors.Is(err, os.ErrNotExist), "nothing is saved: error %v", err)
	first, second := services("10.96.0.1:80", "10.96.0.2:80"), services("10.96.0.3:80")
	testkit.Succeed(t, f.replace(t.Context(), first, func() error { return nil }))
	want(t, f, first)
	broken := errors.New("broken")
	err = f.replace(t.Context(), second, func() error { return broken })
	testkit.Check(t, errors.Is(err, broken), "error %v", err)
	want(t, f, first)
	// What a killed process left.
	testkit.Succeed(t, os.WriteFile(filepath.Join(filepath.Dir(string(f)), ".services.json.new"), []byte("{"), 0o644))
	testkit.Succeed(t, f.replace(t.Context(), second, func() error { return nil }))
	want(t, f, second)
	testkit.Succeed(t, f.replace(t.Context(), nil, func() error { return nil }))
	want(t, f, nil)
}

// TestSavedTakesTurns waits for another writer until the limit of the context.
func TestSavedTakesTurns(t *testing.T) {
	f := savedFile(filepath.Join(t.TempDir(), "services.json"))
	ctx := lock.Wait{Limit: 10 * time.Millisecond}.WithContext(t.Context())
	err := f.replace(t.Context(), services("10.96.0.1:80"), func() error {
		err := f.replace(ctx, nil, func() error { return nil })
		var held *lock.Error
		testkit.Check(t, errors.As(err, &held) && held.PID == os.Getpid() && errors.Is(err, context.DeadlineExceeded),
			"error %v", err)
		return nil
	})
	testkit.Succeed(t, err)
	want(t, f, services("10.96.0.1:80"))
}
