// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestFormats compares the formats in Go with those in the objects.
func TestFormats(t *testing.T) {
	seen := make(map[string]bool)
	for _, load := range []func() (*ebpf.CollectionSpec, error){loadTc, loadSocklb} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for name, m := range spec.Maps {
			want, pinned := formats()[name]
			seen[name] = true
			if pinned && want != (format{m.Type, uintptr(m.KeySize), uintptr(m.ValueSize)}) {
				t.Errorf("%s is %v in the object, want %v", name, m, want)
			}
		}
	}
	for name := range formats() {
		if !seen[name] {
			t.Errorf("no object has the map %q", name)
		}
	}
}

// TestOrderedAdds checks that each atomic addition of the programs returns a value: others are no barriers on arm64.
func TestOrderedAdds(t *testing.T) {
	spec, err := loadTc()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range spec.Programs {
		for i, instruction := range p.Instructions {
			if instruction.OpCode.AtomicOp() == asm.AddAtomic {
				t.Errorf("%s: instruction %d is %v", name, i, instruction)
			}
		}
	}
}

// TestDigests compares the digests in Go with the objects.
func TestDigests(t *testing.T) {
	for want, object := range map[string][]byte{tcDigest: _TcBytes, socklbDigest: _SocklbBytes} {
		sum := sha256.Sum256(object)
		if got := hex.EncodeToString(sum[:8]); got != want {
			t.Errorf("digest %s, want %s: generate again", want, got)
		}
	}
}
