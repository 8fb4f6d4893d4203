// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Table is a pinned map with typed rows. Its methods may be called concurrently.
type Table[K comparable, V any] struct {
	Map  *ebpf.Map // the map itself, and Name its name
	Name string
}

// FullError reports that a map is full. Its size is set when the datapath is first opened.
type FullError struct {
	Map  string
	Size uint32
}

func (e *FullError) Error() string {
	return fmt.Sprintf("map %q is full: it holds %d rows", e.Map, e.Size)
}

// Full returns the error of a full map.
func (t *Table[K, V]) Full() error { return &FullError{Map: t.Name, Size: t.Size()} }

// Size returns the maximum number of rows.
func (t *Table[K, V]) Size() uint32 { return t.Map.MaxEntries() }

// Memory returns the bytes of the kernel's memory that the map has, its rows among them.
func (t *Table[K, V]) Memory() (uint64, error) {
	info, err := t.Map.Info()
	if err != nil {
		return 0, fmt.Errorf("memory of map %q: %w", t.Name, err)
	}
	n, _ := info.Memlock()
	return n, nil
}

// Get returns the row with a key, and whether there is one.
func (t *Table[K, V]) Get(key K) (value V, ok bool, err error) {
	switch err := t.Map.Lookup(&key, &value); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return value, false, nil
	case err != nil:
		return value, false, fmt.Errorf("read map %q: %w", t.Name, err)
	}
	return value, true, nil
}

// Put stores one row. If the map is full, the error is a *FullError.
func (t *Table[K, V]) Put(key K, value V) error {
	return t.writeError(t.Map.Update(&key, &value, ebpf.UpdateAny))
}

// PutBatch stores rows in one system call, which a killed process completes. It returns the number of rows stored. If
// the map is too full for all rows, the error is a *FullError.
func (t *Table[K, V]) PutBatch(keys []K, values []V) (int, error) {
	if len(keys) == 0 {
		return 0, nil
	}
	n, err := t.Map.BatchUpdate(keys, values, &ebpf.BatchOptions{})
	if err != nil && n == len(keys) {
		n = 0 // the kernel counts rows once it has begun; before, the number is the one that was asked for
	}
	return n, t.writeError(err)
}

func (t *Table[K, V]) writeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ENOSPC): // a hash table, a trie
		return t.Full()
	}
	return fmt.Errorf("write map %q: %w", t.Name, err)
}

// Delete deletes the row with a key, if there is one.
func (t *Table[K, V]) Delete(key K) error {
	if err := t.Map.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from map %q: %w", t.Name, err)
	}
	return nil
}

// DeleteBatch deletes the rows with the keys, in one system call unless some are missing.
func (t *Table[K, V]) DeleteBatch(keys []K) error {
	for len(keys) > 0 {
		n, err := t.Map.BatchDelete(keys, &ebpf.BatchOptions{})
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, ebpf.ErrKeyNotExist):
			return fmt.Errorf("delete from map %q: %w", t.Name, err)
		}
		keys = keys[min(n+1, len(keys)):] // the kernel stops at the first key that is missing
	}
	return nil
}

// All returns the rows of a hash map. It needs no lock: the kernel reads each bucket at once, so that a row that stays
// for the whole time is seen exactly once. Rows that come or go meanwhile may be missed.
func (t *Table[K, V]) All() iter.Seq2[Row[K, V], error] {
	const step = 1024 // must hold the largest bucket
	return func(yield func(Row[K, V], error) bool) {
		keys, values := make([]K, step), make([]V, step)
		var cursor ebpf.MapBatchCursor
		for {
			n, err := t.Map.BatchLookup(&cursor, keys, values, nil)
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				yield(Row[K, V]{}, fmt.Errorf("read map %q: %w", t.Name, err))
				return
			}
			for i := range n {
				if !yield(Row[K, V]{keys[i], values[i]}, nil) {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
}

// Rows returns what All does, by key.
func (t *Table[K, V]) Rows() (map[K]V, error) {
	rows := make(map[K]V)
	for row, err := range t.All() {
		if err != nil {
			return nil, err
		}
		rows[row.Key] = row.Value
	}
	return rows, nil
}

// Row is one row of a table.
type Row[K, V any] struct {
	Key   K
	Value V
}
