// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"mustang/internal/datapath/objects"
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
