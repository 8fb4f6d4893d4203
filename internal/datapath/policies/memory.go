// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"maps"
	"sync"

	"mustang/internal/policy"
)

// Memory is what a process remembers between two changes of policies, so that one costs what it touches. It is of use until another
// process takes its turn.
type Memory struct {
	mutex    sync.Mutex
	turn     uint64 // 0: nothing is remembered
	docs     documents
	compiler *policy.Compiler
}

// take returns the documents, and the compiler that has followed them, which is nil if there is none. The caller has the lock of the
// rows, and the memory has forgotten both until they are kept again.
func (p Policies) take() (documents, *policy.Compiler, error) {
	docs, compiler, err := p.remembered(true)
	if err == nil && docs.sets == nil {
		docs, err = p.read()
	}
	return docs, compiler, err
}

// recall returns the documents. It needs no lock.
func (p Policies) recall() (documents, error) {
	docs, _, err := p.remembered(false)
	if err == nil && docs.sets == nil {
		docs, err = p.read()
	}
	return docs, err
}

// remembered returns what the memory has, if no other process has taken its turn since and none has left work behind.
func (p Policies) remembered(take bool) (docs documents, c *policy.Compiler, err error) {
	m := p.Memory
	if m == nil {
		return docs, nil, nil
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.turn == 0 {
		return docs, nil, nil
	}
	if err := p.Objects.OpenTables(); err != nil {
		return docs, nil, err
	}
	turn, err := p.turn()
	if err != nil {
		return docs, nil, err
	}
	pending, err := p.Pending()
	if err != nil {
		return docs, nil, err
	}
	if turn == m.turn && !pending {
		docs, c = m.docs, m.compiler
		docs.heads = maps.Clone(docs.heads)
	}
	if take {
		m.turn, m.docs, m.compiler = 0, documents{}, nil
	}
	return docs, c, nil
}

// keep remembers documents with the compiler that has followed them. The caller has the lock of the rows.
func (p Policies) keep(docs documents, c *policy.Compiler) {
	m := p.Memory
	turn, err := p.turn()
	if m == nil || err != nil || docs.sets == nil {
		return
	}
	docs.keys = nil
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.turn, m.docs, m.compiler = turn, docs, c
}
