// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy/manifest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestPolicyPackets sends packets of a pod and of its network, while policies select one of the pods.
func TestPolicyPackets(t *testing.T) {
	b := newBench(t)
	for _, at := range []objects.AttachPoint{objects.AttachHost, objects.AttachPod, objects.AttachNetkit} {
		for _, v6 := range []bool{false, true} {
			t.Run(string(at), func(t *testing.T) {
				runScriptsIn(t, at, newWorld(b, v6, protoUDP), "policy")
			})
		}
	}
}

// applyPacketPolicies replaces the policies of the command line with the policies of the documents. Pods a (the
// backend) and b (the client) have labels.
func (w *world) applyPacketPolicies(t *testing.T, audit bool, documents ...string) {
	t.Helper()
	for name, end := range map[string]netip.AddrPort{"a": w.backend, "b": w.client} {
		documents = append(documents, fmt.Sprintf(
			"{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: %[1]s}}, status: {podIP: %q}}", name, end.Addr()))
	}
	set := must(manifest.Read(strings.NewReader("---\n" + strings.Join(documents, "\n---\n"))))(t)
	must(w.Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: set.Snapshot, Audit: audit}))(t)
}

// policyCommands are the lines of policy scripts that are not packets. "policy" and "audit" name policies, which
// replace all others; "remember" and "unchanged" are about the slots of connections.
func (r *scriptRun) policyCommands(t *testing.T) map[string]func(args []string) {
	apply := func(audit bool) func([]string) {
		return func(names []string) {
			var documents []string
			for _, name := range names {
				documents = append(documents, map[string]string{
					"denyIngressA": denyIngressA, "fromBToA": fromBToA, "denyEgressB": denyEgressB, "egressFromB": egressFromB,
					"denyIngressB":  denyIngressB,
					"egressFromB54": strings.Replace(egressFromB, "53", "54", 1),
				}[name])
			}
			r.applyPacketPolicies(t, audit, documents...)
			t.Cleanup(func() {
				r.applyPacketPolicies(t, false)
				r.sendAnything(t)
			})
		}
	}
	slots := func() (all []objects.Slot) {
		succeed(t, r.objects.Slots.Each(func(_ uint32, slot objects.Slot) bool { all = append(all, slot); return true }))
		return all
	}
	return map[string]func(args []string){
		"policy": apply(false), "audit": apply(true),
		"remember": func([]string) { r.slots = slots() },
		"unchanged": func([]string) {
			now := slots()
			failIf(t, !reflect.DeepEqual(now, r.slots), "%+v, want %+v", now, r.slots)
		},
	}
}

func (r *scriptRun) policyHook(name string) (objects.Hook, objects.Sender) {
	kind, dhcp := strings.CutSuffix(name, "-dhcp")
	program := map[string]string{"out": "from_pod", "outa": "from_pod", "guarded": "from_pod", "in": "to_pod",
		"inb": "to_pod"}[kind]
	pod := r.client
	if kind == "outa" || kind == "in" {
		pod = r.backend
	}
	sender := objects.Sender{Endpoint: 1, Flags: objects.SenderUnguarded, Pod: rows.EncodeAddr(pod.Addr())}
	if dhcp {
		sender.Flags |= objects.SenderDHCP
	}
	if name == "guarded" {
		sender.Endpoint, sender.Flags, sender.LinkLocal, sender.Mac = 2, 0, rows.EncodeAddr(ownLocal), [6]byte(mac("0c"))
	}
	return objects.Hook{Point: r.at, Program: program}, sender
}

func (r *scriptRun) policyLine(t *testing.T, name string, words, want []string) {
	t.Helper()
	h, sender := r.policyHook(name)
	testkit.Require(t, h.Program != "" && len(want) != 0, "%q is neither a command nor a program with a result", name)
	frame := arp(1, "0c", "0c", own4)
	if words[0] != "arp" {
		frame = r.packet(t, h, words).sent.frame()
	}
	drop, counted := r.judged(t, h, sender, frame)
	failIf(t, drop != want[0] && (want[0] != "passes" || drop != ""), "dropped for %q, want %s", drop, want[0])
	for _, counter := range want[1:] {
		equal(t, counted[counter], 1, counter)
	}
}

// judged runs a program of a sender's device on a frame, and returns why it is dropped if it is, and all counters.
//
//revive:disable-next-line:argument-limit // t comes on top
func (w *world) judged(t *testing.T, h objects.Hook, sender objects.Sender, frame []byte) (drop string,
	counted map[string]uint64) {
	t.Helper()
	key := objects.SenderKey{Ifindex: 1}
	if h.Point == objects.AttachPod || h.Point == objects.AttachNetkit && h.Program == "to_pod" {
		key.Netns = ownCookie(t)
	}
	succeed(t, w.objects.Senders.Put(key, sender))
	before := counts(t, w.Datapath)
	action, _ := w.run(t, h, frame)
	counted = delta(t, w.Datapath, before)
	for name := range counted {
		if strings.HasPrefix(name, "drop_") {
			drop = name
		}
	}
	failIf(t, (action == actionDrop) != (drop != ""), "action %d, counted %v", int32(action), counted)
	return drop, counted
}

// TestAddressEndsInZeros: if the last 32 bits of an address are 0, its pod's policies still hold, whatever address
// the pod sends from.
func TestAddressEndsInZeros(t *testing.T) {
	w := pods(t, true, protoUDP)
	for _, last := range []string{"fd00:1:0:0:0:1:0:0", "fd00:1:0:0:0:1:0:1"} {
		addr := netip.MustParseAddr(last)
		row, _ := must2(w.objects.Endpoints.Get(rows.EncodeAddr(w.client.Addr())))(t)
		row.Id = 77
		succeed(t, w.objects.Endpoints.Put(rows.EncodeAddr(addr), row))
		w.applyPacketPolicies(t, false, denyEgressB,
			`{apiVersion: v1, kind: Pod, metadata: {name: z, labels: {app: b}}, status: {podIP: "`+last+`"}}`)
		sender := objects.Sender{Endpoint: 1, Flags: objects.SenderUnguarded, Pod: rows.EncodeAddr(addr)}
		for _, from := range []netip.Addr{addr, ownLocal} {
			drop, _ := w.judged(t, fromHost, sender, w.first(netip.AddrPortFrom(from, 4000), w.outsider).frame())
			equal(t, drop, egressDrop, "from %s", from)
		}
		w.applyPacketPolicies(t, false)
		succeed(t, w.objects.Endpoints.Delete(rows.EncodeAddr(addr)))
	}
	w.sendAnything(t)
}

// TestPodsInOneCacheSlot has a pod reach another pod under policies, with addresses that share a slot of the caches: a
// look-up of one replaces the copy of the other.
func TestPodsInOneCacheSlot(t *testing.T) {
	n, d := routed(t), openTest(t)
	const a, b = "10.244.0.2", "10.244.1.118"
	n.run(t, `
		-n PODA addr flush dev eth0 scope global
		-n PODB addr flush dev eth0 scope global
		up PODA eth0 `+a+`/32
		up PODB eth0 `+b+`/32
		-n PODA route add `+gateway4+` dev eth0
		-n PODB route add `+gateway4+` dev eth0
		default PODA `+gateway4+`
		default PODB `+gateway4+`
		-n HOST route add `+a+` dev va
		-n HOST route add `+b+` dev vb`)
	n.labelled(t, d)
	server := testkit.Echo(t, n.pods[0], "tcp", a+":0")
	for _, policies := range [][]string{
		nil, {denyEgressB, toAnyFromB}, {denyIngressA, fromAnyToA}, {denyIngressA, fromAnyToA, denyEgressB, toAnyFromB},
	} {
		applyPolicies(t, d, policies...)
		for range 3 {
			if _, err := testkit.RoundTrip(t, n.pods[1], "tcp", server.String(), []byte("x")); err != nil {
				t.Errorf("under %v: %v", policies, err)
				break
			}
		}
	}
}

const toAnyFromB = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: b-to-any}, spec: ` +
	`{podSelector: {matchLabels: {app: b}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}}`
