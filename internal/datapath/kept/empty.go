// SPDX-License-Identifier: Apache-2.0

package kept

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// empty sets a map to what it was when it was created.
func empty(id ebpf.MapID) error {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil || info.Frozen() { // constants
		return err
	}
	if memory, err := m.Memory(); err == nil {
		_, err = memory.WriteAt(make([]byte, memory.Size()), 0)
		return err
	}
	zero := make([]byte, m.ValueSize())
	switch m.Type() {
	case ebpf.Array:
		for key := range m.MaxEntries() {
			if err := m.Put(key, zero); err != nil {
				return err
			}
		}
		return nil
	case ebpf.PerCPUArray:
		keys := make([]uint32, m.MaxEntries())
		for i := range keys {
			keys[i] = uint32(i)
		}
		_, err := m.BatchUpdate(keys, slices.Repeat([][]byte{zero}, len(keys)*ebpf.MustPossibleCPU()), nil)
		return err
	case ebpf.RingBuf:
		return drain(m)
	default:
		return deleteRows(m)
	}
}

// drain reads what a ring buffer holds.
func drain(m *ebpf.Map) error {
	reader, err := ringbuf.NewReader(m)
	if err != nil {
		return err
	}
	defer reader.Close()
	reader.SetDeadline(time.Now())
	for err == nil {
		_, err = reader.Read()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// deleteRows deletes all rows of a hash table or trie.
func deleteRows(m *ebpf.Map) error {
	var keys [][]byte
	key := make([]byte, m.KeySize())
	err := m.NextKey(nil, &key)
	for ; err == nil; err = m.NextKey(key, &key) {
		keys = append(keys, bytes.Clone(key))
	}
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	for _, key := range keys {
		// One of an LRU table may be gone by itself.
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
