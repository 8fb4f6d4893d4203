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

// budget bounds the size of a program.
type budget struct {
	// instructions bounds the program in the object, with the functions that it calls: the size when the budget was set
	// and about 5 %.
	instructions int
	// verified bounds the instructions that the verifier processes, which differ between kernels: about twice the number
	// of Linux 6.18. The kernel's own limit is a million. 0 if no test loads the program alone.
	verified uint32
}

// budgets returns the budgets of all programs. To raise one, show the gain for the packet path.
func budgets() map[string]budget {
	return map[string]budget{
		"from_pod":     {19_000, 200_000},
		"to_pod":       {13_100, 100_000},
		"from_uplink":  {20_040, 170_000},
		"to_uplink":    {4980, 50_000},
		"guard":        {2110, 60_000},
		"outer_guard":  {2330, 60_000},
		"outer_seal":   {880, 10_000},
		"connect4":     {1060, 0},
		"connect6":     {1070, 0},
		"sendmsg4":     {1970, 0},
		"sendmsg6":     {1980, 0},
		"recvmsg4":     {270, 0},
		"recvmsg6":     {290, 0},
		"getpeername4": {49, 0},
		"getpeername6": {54, 0},
		"retire_udp":   {240, 0},
		"retire_tcp":   {248, 0},
		"edt":          {59, 0},
		"police":       {54, 0},
		"pass":         {65, 0},
		"join":         {46, 0},
	}
}

// TestInstructionBudget counts the instructions of all programs of all objects. A budget that is far too high is an
// error too, so that what one change saves the next one does not spend unseen.
func TestInstructionBudget(t *testing.T) {
	left := budgets()
	eachProgram(t, func(path string, program *ebpf.ProgramSpec) {
		if strings.Contains(path, "/explain/") { // its programs run only while someone looks
			return
		}
		name := program.Name
		want, ok := left[name]
		delete(left, name)
		switch got := len(program.Instructions); {
		case !ok:
			t.Errorf("%s: program %s has no budget, and %d instructions", path, name, got)
		case got > want.instructions:
			t.Errorf("%s: program %s has %d instructions, and a budget of %d", path, name, got, want.instructions)
		case got < want.instructions*9/10:
			t.Errorf("%s: program %s has %d instructions; lower its budget of %d", path, name, got, want.instructions)
		}
	})
	for name := range left {
		t.Errorf("no object has program %s", name)
	}
}

// eachProgram calls fn for each program of each object.
func eachProgram(t *testing.T, fn func(path string, program *ebpf.ProgramSpec)) {
	t.Helper()
	succeed(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_bpfel.o") {
			return err
		}
		spec, err := ebpf.LoadCollectionSpec(path)
		if err != nil {
			return err
		}
		for _, program := range spec.Programs {
			fn(path, program)
		}
		return nil
	}))
}

// TestVerifierBudget loads the packet programs for each attach point.
func TestVerifierBudget(t *testing.T) {
	b := newBench(t)
	for _, h := range b.objects.DeviceHooks() {
		info := must(b.loaded(t, h).Info())(t)
		got, ok := info.VerifiedInstructions()
		if want := budgets()[h.Program].verified; !ok || got == 0 || got > want {
			t.Errorf("%s: the verifier processed %d instructions (%v), and the budget is %d", h, got, ok, want)
		}
	}
}

const stackOfCalls = 512 // the stack that the kernel lets a chain of functions have (MAX_BPF_STACK)

// TestStackBudget adds up the stack of the functions that call each other, as the verifier of Linux 6.6 does, which
// rounds each to 32 bytes; newer ones round to 16. A callback is called from where its address is taken.
func TestStackBudget(t *testing.T) {
	eachProgram(t, func(path string, program *ebpf.ProgramSpec) {
		bytes, chain := readFunctions(program.Instructions).deepest(program.Name)
		t.Logf("%s: program %s needs %d bytes of stack: %s", path, program.Name, bytes, chain)
		failIf(t, bytes > stackOfCalls, "that program has %d bytes", stackOfCalls)
	})
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
