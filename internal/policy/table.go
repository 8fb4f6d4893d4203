// SPDX-License-Identifier: Apache-2.0

package policy

// table are rows of one map, with what has changed since the last call of changes.
type table[K, V comparable] struct {
	rows map[K]V
	had  map[K]row[V]
}

// row is a row before it was changed.
type row[V any] struct {
	value V
	there bool
}

func newTable[K, V comparable]() table[K, V] { return table[K, V]{rows: map[K]V{}} }

func (t *table[K, V]) put(k K, v V) {
	was, there := t.rows[k]
	if there && was == v {
		return
	}
	t.note(k, row[V]{was, there})
	t.rows[k] = v
}

func (t *table[K, V]) remove(k K) {
	if was, there := t.rows[k]; there {
		t.note(k, row[V]{was, true})
		delete(t.rows, k)
	}
}

func (t *table[K, V]) note(k K, was row[V]) {
	if t.had == nil { // the first compilation: all is new
		return
	}
	if _, noted := t.had[k]; !noted {
		t.had[k] = was
	}
}

// changes returns what has changed since the last call.
func (t *table[K, V]) changes() Change[K, V] {
	c := Change[K, V]{Put: map[K]V{}}
	for k, was := range t.had {
		now, there := t.rows[k]
		switch {
		case there && !(was.there && was.value == now):
			c.Put[k] = now
		case !there && was.there:
			c.Delete = append(c.Delete, k)
		}
	}
	t.had = map[K]row[V]{}
	return c
}
