// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
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
		Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, action),
			asm.Return()},
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
		got, err := Ingress(a, d.Index)
		testkit.Check(t, got == uint32(id) && err == nil, "%s: program %d, %v, want %d", when, got, err, id)
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
		left := strings.Contains(tc(t, a, "qdisc show dev left"), "clsact")
		testkit.Check(t, left == other, "clsact is left: %v", left)
	}
	got := tc(t, a, "filter show dev left ingress")
	testkit.Check(t, strings.Contains(got, "u32"), "the other's filter is gone: %q", got)
	tc(t, a, "filter add dev left ingress protocol all prio 1 u32 match u32 0 0 flowid 1:1")
	err := SetIngress(a, d.Index, next.FD())
	testkit.Check(t, errors.Is(err, errors.ErrUnsupported), "with a filter of another kind in its place: %v", err)
	err = SetIngress(a, 999, next.FD())
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "without a device: %v", err)
	id, err := Ingress(a, 999)
	testkit.Check(t, id == 0 && err == nil, "without a device: %d, %v", id, err)
	err = DeleteIngress(a, 999)
	testkit.Check(t, err == nil, "without a device: %v", err)
}

// TestPolice passes packets until the burst and the slack are used up.
func TestPolice(t *testing.T) {
	p := newProgram(t, edtProgPolice, policeBucket(Limit{Rate: 8_000_000, Burst: 80_000}))
	passed := 0
	for range 1000 {
		verdict := testkit.Must(p.Program.Run(&ebpf.RunOptions{Data: make([]byte, 1000)}))(t)
		if verdict == verdictNext {
			passed++
		} else if verdict != verdictDrop {
			t.Fatalf("verdict %d", int32(verdict))
		}
	}
	// At a megabyte a second these are ten kilobytes, and the kilobytes of policeSlack; more while the test runs.
	want := 10 + int(policeSlack/time.Millisecond)
	testkit.Check(t, passed >= want && passed <= 8*want, "%d packets passed, want %d", passed, want)
}

// TestSetPolice sets limits of received packets, one after another; the last leaves none.
func TestSetPolice(t *testing.T) {
	a, _ := testkit.VethPair(t)
	old := ebpf.ProgramID(0)
	for _, limit := range []Limit{{}, {Rate: 8e6}, {Rate: 8e6}, {Rate: 8e6, Burst: 8e6}, {Rate: 9e6}, {}, {Rate: 8e6}} {
		before := testkit.Must(PoliceDeviation(a, device, limit))(t)
		testkit.Succeed(t, SetPolice(a, device, limit))
		if says, err := PoliceDeviation(a, device, limit); says != "" || err != nil {
			t.Errorf("%+v: %s, %v", limit, says, err)
		}
		id := ebpf.ProgramID(0)
		err := onPolice(a, "read", device, func(at policePoint) error {
			have, err := at.find()
			for _, one := range have {
				id = one.id
			}
			return err
		})
		testkit.Check(t, err == nil && (id == old) == (before == ""),
			"%+v: program %d after %d, %q, %v", limit, id, old, before, err)
		if id != old && old != 0 {
			awaitGone(t, uint32(old))
		}
		old = id
	}
	if says, err := PoliceDeviation(a, device,
		Limit{}); says == "" || err != nil {
		t.Errorf("deviation %q, %v", says, err)
	}
	err := SetPolice(a, "none", Limit{Rate: 8e6})
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "%v", err)
	testkit.Fails(t, SetPolice(a, device, Limit{Rate: 8e6, Burst: 8}))
	testkit.Command(t, a, "ip link del "+device)
	awaitGone(t, uint32(old))
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]uint64{"10gbit": 10e9, "1.5mbit": 15e5, "1000kbit": 1e6, "2000000bit": 2e6,
		"1Gbit": 1e9, "100gbit": 1e11} {
		got, err := ParseRate(text)
		testkit.Check(t, err == nil && got == want, "%q: %d, %v; want %d", text, got, err, want)
	}
	for _, text := range []string{"", "10", "gbit", "-1gbit", "0bit", "1e99gbit", "nangbit", "10gbyte", "8kbit",
		"401gbit"} {
		got, err := ParseRate(text)
		testkit.Check(t, err != nil, "%q is parsed as %d", text, got)
	}
}

// FuzzParseRate parses any text to a rate that a wire can have, or to an error.
func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"10gbit", "1.5mbit", "0x1p4bit", "infgbit", "1_0kbit", " 1bit", "-0bit", "34.3gbit"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rate, err := ParseRate(text)
		testkit.Check(t, err != nil || CheckEmulation(rate, 0) == nil, "%q is parsed as %d bit/s", text, rate)
	})
}

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }
