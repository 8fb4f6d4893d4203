// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// tunAddresses sets addresses for packets without an Ethernet header. BPF_PROG_TEST_RUN parses them as frames, and
// reads the protocol at a frame's offset: the first two bytes of an IPv4 source, the fifth and sixth of an IPv6 source.
func (w *world) tunAddresses() {
	addresses := []string{"8.0.10.11:40000", "8.0.10.10:8080", "8.0.1.2:8080", "8.0.8.8:53"}
	if w.v6 {
		addresses = []string{"[fd00:10:86dd::b]:40000", "[fd00:10:86dd::a]:8080", "[fd00:99:86dd::2]:8080",
			"[2001:db8:86dd::8]:53"}
	}
	for i, ap := range []*netip.AddrPort{&w.client, &w.backend, &w.remote, &w.outsider} {
		*ap = netip.MustParseAddrPort(addresses[i])
	}
}

// without returns p without an Ethernet header, long enough for BPF_PROG_TEST_RUN to find Ethernet and IP headers in
// it.
func (p packet) without() packet {
	p.noEthernet = true
	p.payload += ", and more of it"
	return p
}

// TestDropReasons provokes each reason of enum drop_reason, as the type information lists them, and expects a dropped
// packet and a counted reason. A new reason fails here until it has a case.
func TestDropReasons(t *testing.T) {
	spec := must(ebpf.LoadCollectionSpec("objects/tc_bpfel.o"))(t)
	var reasons *btf.Enum
	succeed(t, spec.Types.TypeByName("drop_reason", &reasons))
	cases := map[string]func(*testing.T){"TABLE_FULL": tableFull, "CLIENT_SHARE": clientShare}
	for _, reason := range reasons.Values {
		name := strings.TrimPrefix(reason.Name, "DROP_")
		switch name {
		case "UNSPECIFIED", "COUNT": // no reasons
		case "REWRITE": // the kernel lacks memory to write to the packet: cannot be provoked
		case "MALFORMED", "EXTENSIONS": // TestTranslate
		case "NO_BACKEND", "BACKEND_MISSING", "PORT_EXHAUSTED": // TestRefusePackets, TestTranslate, TestPortSearch
		case "NO_ROUTE", "NO_SOURCE", "TUNNEL_ROUTE": // TestNoWay, which has a network
		case "TOO_BIG", "TTL": // TestErrorsOnTheWay
		case "SOURCE", "SOURCE_MAC", "NEIGHBOUR", "ETHERTYPE": // TestGuard
		case "POLICY_EGRESS", "POLICY_INGRESS": // TestPolicyPackets
		case "NO_LOCAL_BACKEND", "SOURCE_RANGE", "BACKEND_REMOVED": // TestLocalPolicy, TestSourceRanges, TestReset
		default:
			run := cases[name]
			if run == nil {
				run = func(t *testing.T) { t.Error("no case provokes it") }
			}
			t.Run(name, run)
		}
	}
}

func tableFull(t *testing.T) {
	b := newBench(t)
	spec := must(ebpf.LoadCollectionSpec("objects/tc_bpfel.o"))(t)
	spec.Maps["connections"].MaxEntries = 1
	spec.Programs = map[string]*ebpf.ProgramSpec{"from_pod": spec.Programs["from_pod"]}
	pinned := map[string]*ebpf.Map{
		"services": b.objects.Services.Map, "backends": b.objects.Backends.Map, "endpoints": b.objects.Endpoints.Map,
		"slots": b.objects.Slots.Map, "metrics": b.objects.Metrics.Map, "node_state": b.objects.NodeState.Map,
		"source_guard": b.objects.Senders.Map,
	}
	for name, m := range pinned {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	collection := must(ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: pinned}))(t)
	defer collection.Close()
	b.programs[fromHost] = collection.Programs["from_pod"]
	table := collection.Maps["connections"]
	w := newWorld(b, false, protoTCP)
	w.serve(t, w.service, w.backend)
	full := wants{actionDrop, nil, once("drop_table_full")}

	// Room for the reply direction only, which must not stay.
	w.check(t, fromHost, w.first(w.client, w.service), full)
	var key objects.Tuple
	failsWith(t, table.NextKey(nil, &key), ebpf.ErrKeyNotExist, "half a connection stayed: %+v", key)
	// No room.
	succeed(t, table.Put(objects.Tuple{Proto: 1}, objects.ConnectionRow{}))
	w.check(t, fromHost, w.first(w.client, w.service), full)
}

// clientShare has a client with two thirds of the shared slots, which are four fifths of all.
func clientShare(t *testing.T) {
	w := withSlots(t, 64)
	for port := range uint16(35) {
		w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 1024+port), w.service))
	}
	w.gets(t, fromHost, w.first(w.client, w.service), "drop: drop_client_share")
	// Another client has room.
	w.send(t, fromHost, w.first(netip.AddrPortFrom(w.backend.Addr(), 1024), w.service))
}

// must returns the value of a call, and ends the test if the call failed: must(call())(t).
func must[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		succeed(t, err)
		return v
	}
}

func must2[V, W any](v V, w W, err error) func(testing.TB) (V, W) {
	return func(t testing.TB) (V, W) {
		t.Helper()
		succeed(t, err)
		return v, w
	}
}

// succeed ends the test if a call failed. what names the call: a format and its arguments.
func succeed(t testing.TB, err error, what ...any) {
	t.Helper()
	testkit.Require(t, err == nil, "%s%v", saying(what), err)
}

func noError(t testing.TB, err error, what ...any) {
	t.Helper()
	testkit.Check(t, err == nil, "%s%v", saying(what), err)
}

// equal fails the test unless a value is the wanted one.
func equal[V comparable](t testing.TB, got, want V, what ...any) {
	t.Helper()
	testkit.Check(t, got == want, "%s%v, want %v", saying(what), got, want)
}

// wantLen fails the test unless a list or map has so many items.
func wantLen(t testing.TB, list any, want int, what ...any) {
	t.Helper()
	testkit.Check(t, reflect.ValueOf(list).Len() == want, "%s%v, want %d", saying(what), list, want)
}

// failsAs ends the test unless an error is of a type, and returns it.
func failsAs[E error](t testing.TB, err error, what ...any) (e E) {
	t.Helper()
	testkit.Require(t, errors.As(err, &e), "%serror %v, want %T", saying(what), err, e)
	return e
}

// wantFull fails the test unless an error reports that a map is full.
func wantFull(t testing.TB, err error, table string) {
	t.Helper()
	equal(t, failsAs[*objects.FullError](t, err).Map, table, "the full map")
}

// failsWith fails the test unless an error matches another one.
func failsWith(t testing.TB, err, want error, what ...any) {
	t.Helper()
	testkit.Check(t, errors.Is(err, want), "%serror %v, want %v", saying(what), err, want)
}

func failIf(t testing.TB, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Errorf(format, args...)
	}
}

func saying(what []any) string {
	if len(what) == 0 {
		return ""
	}
	return fmt.Sprintf(what[0].(string), what[1:]...) + ": "
}

func errOf[V any](_ V, err error) error { return err }

func errOf2[V, W any](_ V, _ W, err error) error { return err }

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
		err := errOf(f.Probe())
		again := ns.Do(func() error { return errOf(f.Probe()) })
		failIf(t, (err == nil) != (again == nil), "%s: %v, and in a network namespace %v", f.Name, err, again)
		here[f.Name] = err == nil
	}
	for _, name := range []string{"tcx", "bpf_redirect_peer", "cgroup2", "socket programs",
		"bpf_get_netns_cookie", "BTF"} {
		failIf(t, !here[name], "%s is missing, though the datapath works: %v", name, here)
	}
}
