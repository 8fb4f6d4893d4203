// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// alone is a pod that is not an endpoint, and whose guard is a tc filter next to another filter.
type alone struct {
	network
	d      *Datapath
	device int // of the host
}

func newAlone(t *testing.T) alone {
	t.Helper()
	g := alone{network: routed(t), d: openTest(t)}
	g.device = must(rtnl.In(g.host).Device("vb"))(t).Index
	g.run(t, "-n PODB addr add 192.168.10.99/32 dev eth0") // which is not the pod's
	succeed(t, rtnl.In(g.host).SetSysctl("net/ipv4/conf/vb/rp_filter", "0"))
	return g
}

func (g alone) spec() EndpointSpec {
	spec := g.attachment(1)
	spec.Addresses = []netip.Addr{netip.MustParseAddr(podB4), netip.MustParseAddr(podB6)}
	return spec
}

func (g alone) put(t *testing.T, want Change) {
	t.Helper()
	equal(t, must(g.d.Guards().Put(t.Context(), g.spec()))(t), want, "Put")
}

// program returns the filter's program, 0 if there is none.
func (g alone) program(t *testing.T) uint32 {
	t.Helper()
	return must(qdisc.Ingress(g.host, g.device))(t)
}

func (g alone) wants(t *testing.T, isGuarded bool, when string) {
	t.Helper()
	victim := listenIn(t, g.pods[0], podA4)
	defer victim.Close()
	testkit.Eventually(t, 10*time.Second, func() error { return sendUDP(g.pods[1], podB4, victim) })
	before := counts(t, g.d)
	err := sendUDP(g.pods[1], "192.168.10.99", victim)
	dropped := delta(t, g.d, before)["drop_source"] > 0
	failIf(t, dropped != isGuarded || isGuarded == (err == nil), "%s: forged: %v, dropped as such: %v", when, err, dropped)
}

// rows returns the number of pods that are not endpoints.
func (g alone) rows(t *testing.T) int {
	t.Helper()
	return len(must(Guards{g.d.objects}.list())(t))
}

func none(uint64) bool { return false }

// TestGuardFilter goes through the life of the guard of a pod that is not an endpoint: while the guard exists, no
// forged packet passes. Then it makes the guarded pod an endpoint: its programs replace the filter, without an
// unguarded moment.
func TestGuardFilter(t *testing.T) {
	g := newAlone(t)
	g.wants(t, false, "before")
	g.put(t, Added)
	g.wants(t, true, "added")
	first := g.program(t)
	g.put(t, Unchanged)
	wantLen(t, must(g.d.objects.Links())(t), 0, "links")
	err := g.d.Guards().Sweep(t.Context(), none)
	failIf(t, err != nil || g.rows(t) != 1, "Sweep: %v, %d pods are left", err, g.rows(t))

	ofAnotherBuild(t, g.d, "progs")
	openAgain(t, g.d)
	next := g.program(t)
	testkit.Check(t, next != first && next != 0, "program %d after that of another build, %d", next, first)
	g.wants(t, true, "replaced")
	noError(t, g.d.Guards().Check(g.spec()))

	testkit.Command(t, g.host, "tc qdisc del dev vb clsact")
	failsAs[*DeviationError](t, g.d.Guards().Check(g.spec()), "Check without the filter")
	g.put(t, Added)
	g.wants(t, true, "repaired")

	b6 := []netip.Addr{netip.MustParseAddr(podB6)}
	succeed(t, errors.Join(g.d.Guards().DeletePod(t.Context(), cookieOf(t, g.pods[0]), b6),
		g.d.Guards().DeletePod(t.Context(), cookieOf(t, g.pods[1]), nil)))
	g.wants(t, true, "another pod of that address, and another address of the pod, deleted")
	succeed(t, g.d.Guards().DeletePod(t.Context(), cookieOf(t, g.pods[1]), b6))
	g.wants(t, false, "deleted")
	out := testkit.Command(t, g.host, "tc qdisc show dev vb")
	failIf(t, strings.Contains(out, "clsact") || g.rows(t) != 0, "left: %d rows, %q", g.rows(t), out)

	g.put(t, Added)
	must2(g.d.Endpoints().Put(t.Context(), g.spec()))(t)
	equal(t, g.program(t), 0, "the filter is there still: program")
	g.wants(t, true, "endpoint")
}

// TestGuardFilterRemains has calls die after the row and before the filter, and devices go: the next call leaves no
// row.
func TestGuardFilterRemains(t *testing.T) {
	g := newAlone(t)
	half := func(t *testing.T) {
		t.Helper()
		g.put(t, Added)
		succeed(t, qdisc.DeleteIngress(g.host, g.device))
	}
	next := map[string]func(t *testing.T) error{
		"Put": func(t *testing.T) error {
			g.put(t, Added)
			g.wants(t, true, "put")
			return g.d.Guards().DeleteAll(t.Context())
		},
		"DeletePod": func(t *testing.T) error {
			return g.d.Guards().DeletePod(t.Context(), cookieOf(t, g.pods[1]), []netip.Addr{netip.MustParseAddr(podB4)})
		},
		"Sweep": func(t *testing.T) error { return g.d.Guards().Sweep(t.Context(), none) },
		"Sweep inside": func(t *testing.T) error {
			return g.host.Do(func() error { return g.d.Guards().Sweep(t.Context(), none) })
		},
	}
	for name, do := range next {
		t.Run(name, func(t *testing.T) {
			half(t)
			err := do(t)
			failIf(t, err != nil || g.rows(t) != 0, "%v; %d rows are left", err, g.rows(t))
		})
	}
	g.put(t, Added)
	g.run(t, "-n HOST link del vb")
	err := next["Sweep"](t)
	failIf(t, err != nil || g.rows(t) != 0, "Sweep without the device: %v; %d rows are left", err, g.rows(t))
}

// TestGuardKnowsBothEnds takes away one of the two rows of a netkit, which is a deviation, and puts the pod again.
func TestGuardKnowsBothEnds(t *testing.T) {
	d := openTest(t)
	pod := &podDevice{Point: objects.AttachNetkit, IfIndex: 5, Peer: 6, Netns: 7}
	for _, gone := range []objects.SenderKey{{Ifindex: 5}, {Netns: 7, Ifindex: 6}} {
		changed, err := putSender(d.objects, pod.senderRow(2, false))
		testkit.Require(t, err == nil && changed, "Put changed rows: %v, %v", changed, err)
		wantLen(t, must(pod.guardDeviations(d.objects, 2, false))(t), 0, "with both")
		succeed(t, d.objects.Senders.Delete(gone))
		wantLen(t, must(pod.guardDeviations(d.objects, 2, false))(t), 1, "without %v", gone)
	}
}
