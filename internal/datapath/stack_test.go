// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// stackOfCalls is the stack that the kernel lets a chain of functions have (MAX_BPF_STACK).
const stackOfCalls = 512

// TestStackBudget adds up the stack of the functions that call each other, as the verifier of Linux 6.6 does, which rounds each to 32
// bytes; newer ones round to 16. A callback is called from where its address is taken.
func TestStackBudget(t *testing.T) {
	succeed(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_bpfel.o") {
			return err
		}
		spec, err := ebpf.LoadCollectionSpec(path)
		if err != nil {
			return err
		}
		for name, program := range spec.Programs {
			functions := readFunctions(program.Instructions)
			if bytes, chain := functions.deepest(name); bytes > stackOfCalls {
				t.Errorf("%s: program %s needs %d bytes of stack, and has %d: %s", path, name, bytes, stackOfCalls, chain)
			} else {
				t.Logf("%s: program %s needs %d bytes of stack: %s", path, name, bytes, chain)
			}
		}
		return nil
	}))
}

// function is a function of a program.
type function struct {
	stack int
	calls map[string]bool
}

type functions map[string]*function

func readFunctions(all asm.Instructions) functions {
	found := functions{}
	var at *function
	copies := map[asm.Register]bool{}
	for _, i := range all {
		if name := i.Symbol(); name != "" {
			if _, ok := found[name]; !ok {
				at = &function{calls: map[string]bool{}}
				found[name] = at
			}
		}
		touches := i.Src == asm.RFP && (i.OpCode.Class().IsLoad()) || i.Dst == asm.RFP && i.OpCode.Class().IsStore()
		if touches {
			at.stack = max(at.stack, -int(i.Offset))
		}
		// An address on the stack: a copy of r10, and then a constant.
		switch {
		case i.OpCode.ALUOp() == asm.Mov && i.OpCode.Source() == asm.RegSource && i.Src == asm.RFP:
			copies[i.Dst] = true
		case copies[i.Dst] && i.OpCode.ALUOp() == asm.Add && i.OpCode.Source() == asm.ImmSource:
			at.stack = max(at.stack, -int(i.Constant))
			fallthrough
		case i.OpCode.Class().IsALU() || i.OpCode.Class().IsLoad():
			delete(copies, i.Dst)
		}
		if i.IsFunctionReference() {
			at.calls[i.Reference()] = true
		}
	}
	return found
}

// deepest returns the chain of calls that needs the most stack.
func (f functions) deepest(name string) (bytes int, chain string) {
	at := f[name]
	if at == nil {
		return 0, name + "?"
	}
	for called := range at.calls {
		if n, c := f.deepest(called); n > bytes {
			bytes, chain = n, " > "+c
		}
	}
	own := (max(at.stack, 1) + 31) / 32 * 32
	return own + bytes, fmt.Sprintf("%s %d%s", name, at.stack, chain)
}
