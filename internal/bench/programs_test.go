// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"mustang/internal/testkit"
)

// pinnedProgram returns a pinned program that runs this many instructions, and its pin.
func pinnedProgram(t *testing.T, dir, name string, instructions int) (*ebpf.Program, string) {
	t.Helper()
	body := asm.Instructions{asm.Mov.Imm(asm.R0, 0)}
	for range instructions {
		body = append(body, asm.Mul.Imm(asm.R0, 3))
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "long_program", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: append(body, asm.Return()),
	})
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = p.Close() })
	pin := filepath.Join(dir, name)
	testkit.Succeed(t, p.Pin(pin))
	return p, pin
}

// runProgram runs a program some times. One call is one run: the kernel ends a call of several at a signal, and the
// library then repeats it all.
func runProgram(t *testing.T, p *ebpf.Program, times int) {
	t.Helper()
	for range times {
		_, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 1})
		testkit.Require(t, err == nil, "%v", err)
	}
}

// TestRunsAreCountedWhileEnabled checks that just the runs between enableStats and Close are counted, and that runs
// of programs with one name are added up. A program of 50,000 multiplications takes longer than an empty one.
func TestRunsAreCountedWhileEnabled(t *testing.T) {
	testkit.RequireRoot(t)
	dir := testkit.BPFFS(t)
	first, firstPin := pinnedProgram(t, dir, "first", 50_000)
	second, secondPin := pinnedProgram(t, dir, "second", 50_000)
	pins := []string{firstPin, secondPin}
	runProgram(t, first, 10)
	before, err := readRuns(pins)
	testkit.Succeed(t, err)
	stats, err := enableStats()
	testkit.Succeed(t, err)
	runProgram(t, first, 100)
	runProgram(t, second, 20)
	after, err := readRuns(pins)
	testkit.Succeed(t, err)
	testkit.Succeed(t, stats.Close())
	runs := after["long_program"].count - before["long_program"].count
	testkit.Check(t, len(after) == 1 && runs == 120, "%d programs, %d runs, want 120 of one", len(after), runs)
	got := stats.nanos(before["long_program"], after["long_program"])
	testkit.Check(t, !(got <= stats.empty), "%g ns a run, an empty program takes %g", got, stats.empty)
	if none := stats.nanos(programRuns{}, programRuns{}); none != 0 || stats.empty <= 0 {
		t.Errorf("no run takes %g ns, an empty program %g", none, stats.empty)
	}
	_, err = readRuns([]string{filepath.Join(dir, "none")})
	testkit.Check(t, err != nil, "a program that is not pinned has statistics")
}
