// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPanic has the guest's kernel panic.
func TestPanic(t *testing.T) {
	t.Parallel()
	o, _, _ := guestOptions(t, "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 1000")
	_, err := Run(t.Context(), o)
	var guest *GuestError
	if !errors.As(err, &guest) || !strings.Contains(err.Error(), "sysrq triggered crash") {
		t.Errorf("error %v", err)
	}
}

// TestPanicAtBoot has the first process fault at once: the kernel panics each time
// that it is booted, which is three times.
func TestPanicAtBoot(t *testing.T) {
	t.Parallel()
	o, _, _ := guestOptions(t, "true")
	program, err := os.ReadFile(o.Init)
	if err != nil {
		t.Fatal(err)
	}
	clear(program[24:32]) // where it begins (e_entry of ELF64)
	o.Init = filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(o.Init, program, 0o700); err != nil {
		t.Fatal(err)
	}
	var console bytes.Buffer
	o.Console = &console
	_, err = Run(t.Context(), o)
	var guest *GuestError
	if !errors.As(err, &guest) || !strings.Contains(err.Error(), panicMessage) {
		t.Errorf("error %v, want the panic", err)
	}
	if n := strings.Count(console.String(), "not syncing"); n != boots {
		t.Errorf("the kernel panicked %d times, want %d:\n%s", n, boots, console.String())
	}
}
