// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func programsOn(t *testing.T, ns *netns.Namespace, device string) map[string]objects.AttachedProgram {
	t.Helper()
	census := must(linkinfo.Take())(t)
	defer census.Close()
	links := must(census.Links(ns))(t)
	out := map[string]objects.AttachedProgram{}
	succeed(t, ns.Do(func() error {
		for _, l := range links {
			if l.Name != device {
				continue
			}
			programs := objects.ProgramsOn(l.Index, l.Kind)
			for _, ref := range l.Programs {
				programs = append(programs, objects.AttachedProgram{Hook: ref.Hook, ID: ref.ID}.Described())
			}
			for _, p := range programs {
				_, twice := out[p.Hook]
				testkit.Check(t, !twice, "two programs at %s: %v", p.Hook, programs)
				out[p.Hook] = p
			}
		}
		return nil
	}))
	return out
}

// TestAttached finds our programs on each kind of place, and none before.
func TestAttached(t *testing.T) {
	for name, c := range map[string]struct {
		network func(testing.TB) network
		where   func(network) (*netns.Namespace, string)
		want    map[string]string
	}{
		"host": {
			routed, func(n network) (*netns.Namespace, string) { return n.host, "va" },
			map[string]string{"tcx ingress": "from_pod", "tcx egress": "to_pod"},
		},
		"pod": {
			slaves, func(n network) (*netns.Namespace, string) { return n.pods[0], "eth0" },
			map[string]string{"tcx egress": "from_pod", "tcx ingress": "to_pod"},
		},
		"netkit": {
			plugged("netkit"), func(n network) (*netns.Namespace, string) { return n.host, "va" },
			map[string]string{"netkit peer": "from_pod", "netkit primary": "to_pod"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, n := openTest(t), c.network(t)
			ns, device := c.where(n)
			wantLen(t, programsOn(t, ns, device), 0, "before")
			n.attachBoth(t, d)
			got := programsOn(t, ns, device)
			failIf(t, len(got) != len(c.want), "programs are %+v", got)
			for hook, want := range c.want {
				p := got[hook]
				testkit.Check(t, p.Name == want && p.Mustang && p.ID != 0 && p.LinkID != 0 && len(p.Tag) == 16,
					"%s has %+v, want our %s by a link", hook, p, want)
			}
			wantLen(t, programsOn(t, ns, "lo"), 0, "the loopback device has")
			for _, f := range objects.Features("") {
				if f.Name == "netkit programs" && name == "netkit" {
					noError(t, errOf(f.Probe()), "netkit works, but its probe fails")
				}
			}
		})
	}
}

// TestAttachedForeign finds the programs of others: XDP, tc filters, and tcx by a program with the name of one of ours.
func TestAttachedForeign(t *testing.T) {
	testkit.RequireTool(t, "tc")
	n := routed(t)
	dir := testkit.BPFFS(t)
	pinned := func(kind ebpf.ProgramType, name string) *ebpf.Program {
		spec := &ebpf.ProgramSpec{Name: name, Type: kind, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}
		p := must(ebpf.NewProgram(spec))(t)
		t.Cleanup(func() { _ = p.Close() })
		succeed(t, p.Pin(filepath.Join(dir, name)))
		return p
	}
	pinned(ebpf.SchedCLS, "filter")
	namesake, xdp := pinned(ebpf.SchedCLS, "from_pod"), pinned(ebpf.XDP, "dropper")
	// Not tc -n, which hides /sys/fs/bpf from itself.
	testkit.Command(t, n.host, "tc qdisc add dev va clsact")
	for _, way := range []string{"ingress", "egress"} {
		testkit.Command(t, n.host, "tc filter add dev va "+way+" bpf da object-pinned "+filepath.Join(dir, "filter"))
	}
	device := must(rtnl.In(n.host).Device("va"))(t)
	succeed(t, n.host.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: device.Index, Program: namesake, Attach: ebpf.AttachTCXEgress})
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		x, err := link.AttachXDP(link.XDPOptions{Interface: device.Index, Program: xdp, Flags: link.XDPGenericMode})
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = x.Close() })
		return nil
	}))
	got := programsOn(t, n.host, "va")
	for hook, want := range map[string]string{
		"tc ingress": "filter", "tc egress": "filter", "tcx egress": "from_pod", "xdp": "dropper",
	} {
		p := got[hook]
		testkit.Check(t, p.Name == want && !p.Mustang && p.ID != 0, "%s has %+v, want %s, which is not ours", hook, p, want)
	}
	failIf(t, len(got) != 4, "programs are %+v", got)
}

// TestFeatures probes each feature twice, the second time in a network namespace, which must not change the result.
// Features that the datapath's own tests need must be found.
func TestFeatures(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	here, ns := map[string]bool{}, testkit.Namespace(t, "features")
	for _, f := range objects.Features("") {
		failIf(t, f.Name == "" || f.Use == "" || f.Needs == "", "feature %+v is not described", f)
		_, err := f.Probe()
		again := ns.Do(func() error {
			_, err := f.Probe()
			return err
		})
		failIf(t, (err == nil) != (again == nil), "%s: %v, and in a network namespace %v", f.Name, err, again)
		here[f.Name] = err == nil
	}
	for _, name := range []string{"tcx", "bpf_redirect_peer", "cgroup2", "socket programs",
		"bpf_get_netns_cookie", "BTF"} {
		failIf(t, !here[name], "%s is missing, though the datapath works: %v", name, here)
	}
}
