// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// verdict is a program that has the kernel do the same with all packets.
func verdict(t *testing.T, action int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, action), asm.Return()},
	})
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// TestIngress sets, replaces and deletes an ingress program beside another's filter, and without.
func TestIngress(t *testing.T) {
	a, b := testkit.VethPair(t)
	d := testkit.Must(rtnl.In(a).Device(device))(t)
	ping := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		return b.Do(func() error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", "10.0.0.1:9")
			if err == nil {
				_ = conn.Close()
			}
			if errors.Is(err, unix.ECONNREFUSED) {
				return nil // an answer
			}
			return err
		}) == nil
	}
	wants := func(want *ebpf.Program, passes bool, when string) {
		t.Helper()
		var id ebpf.ProgramID
		if want != nil {
			info := testkit.Must(want.Info())(t)
			id, _ = info.ID()
		}
		if got, err := Ingress(a, d.Index); got != uint32(id) || err != nil {
			t.Errorf("%s: program %d, %v, want %d", when, got, err, id)
		}
		if got := ping(); got != passes {
			t.Errorf("%s: packets pass: %v", when, got)
		}
	}
	next, drop := verdict(t, -1), verdict(t, 2)
	wants(nil, true, "before")
	for _, other := range []bool{false, true} {
		if other {
			tc(t, a, "qdisc add dev left clsact")
			tc(t, a, "filter add dev left ingress protocol all prio 2 u32 match u32 0 0 flowid 1:1")
		}
		for _, p := range []*ebpf.Program{next, drop, next, drop} {
			testkit.Succeed(t, SetIngress(a, d.Index, p.FD()))
			wants(p, p == next, "set")
		}
		for range 2 {
			testkit.Succeed(t, DeleteIngress(a, d.Index))
			wants(nil, true, "deleted")
		}
		if left := strings.Contains(tc(t, a, "qdisc show dev left"), "clsact"); left != other {
			t.Errorf("clsact is left: %v", left)
		}
	}
	if got := tc(t, a, "filter show dev left ingress"); !strings.Contains(got, "u32") {
		t.Errorf("the other's filter is gone: %q", got)
	}
	tc(t, a, "filter add dev left ingress protocol all prio 1 u32 match u32 0 0 flowid 1:1")
	if err := SetIngress(a, d.Index, next.FD()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("with a filter of another kind in its place: %v", err)
	}
	if err := SetIngress(a, 999, next.FD()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a device: %v", err)
	}
	if id, err := Ingress(a, 999); id != 0 || err != nil {
		t.Errorf("without a device: %d, %v", id, err)
	}
	if err := DeleteIngress(a, 999); err != nil {
		t.Errorf("without a device: %v", err)
	}
}
