// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/cilium/ebpf"
)

// TestShapes holds what is known of the maps without the objects to the objects.
func TestShapes(t *testing.T) {
	seen := make(map[string]bool)
	for _, load := range []func() (*ebpf.CollectionSpec, error){loadMustang, loadSock} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for name, m := range spec.Maps {
			want, pinned := shapes()[name]
			seen[name] = true
			if pinned && want != (shape{m.Type, uintptr(m.KeySize), uintptr(m.ValueSize)}) {
				t.Errorf("%s is %v in the object, want %v", name, m, want)
			}
		}
	}
	for name := range shapes() {
		if !seen[name] {
			t.Errorf("no object has the map %q", name)
		}
	}
}

// TestDigests holds the names of the programs to the objects.
func TestDigests(t *testing.T) {
	for want, object := range map[string][]byte{mustangDigest: _MustangBytes, sockDigest: _SockBytes} {
		sum := sha256.Sum256(object)
		if got := hex.EncodeToString(sum[:8]); got != want {
			t.Errorf("digest %s, want %s: generate again", want, got)
		}
	}
}
