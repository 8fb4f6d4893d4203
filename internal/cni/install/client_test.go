// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"debug/elf"
	"os"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestClientProgram has a static program for each architecture, with one place for its version.
func TestClientProgram(t *testing.T) {
	for path, machine := range map[string]elf.Machine{"client_amd64": elf.EM_X86_64, "client_arm64": elf.EM_AARCH64} {
		file := testkit.Must(elf.Open(path))(t)
		defer file.Close()
		dynamic := slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC })
		if file.Machine != machine || dynamic {
			t.Errorf("%s: %v, linked dynamically %v", path, file.Machine, dynamic)
		}
		text := testkit.Must(os.ReadFile(path))(t)
		empty := append([]byte(place), make([]byte, placeSize-len(place))...)
		if bytes.Count(text, []byte(place)) != 1 || !bytes.Contains(text, empty) {
			t.Errorf("%s: no place for a version", path)
		}
		stamped := stamp(text, "1.2.3", "4")
		if len(stamped) != len(text) || !bytes.Contains(stamped, []byte("1.2.3\x004\x00")) || !isClient(stamped) {
			t.Errorf("%s is not stamped", path)
		}
		if !bytes.Equal(stamp(text, strings.Repeat("1", placeSize), "4"), text) {
			t.Errorf("%s: a version is cut", path)
		}
	}
	if !isClient(Client()) {
		t.Error("the program of this processor is not known as one")
	}
}
