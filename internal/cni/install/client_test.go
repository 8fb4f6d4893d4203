// SPDX-License-Identifier: Apache-2.0

package install

import (
	"debug/elf"
	"slices"
	"testing"
)

// TestClientProgram has a static program for each architecture.
func TestClientProgram(t *testing.T) {
	for path, machine := range map[string]elf.Machine{"client_amd64": elf.EM_X86_64, "client_arm64": elf.EM_AARCH64} {
		file, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		dynamic := slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC })
		if file.Machine != machine || dynamic {
			t.Errorf("%s: %v, linked dynamically %v", path, file.Machine, dynamic)
		}
	}
	if !isClient(Client()) {
		t.Error("the program of this processor is not known as one")
	}
}
