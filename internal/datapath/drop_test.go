// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// TestDropReasons provokes each reason of enum drop_reason, as the type information lists them, and wants the packet
// dropped and the reason counted. A new reason fails here until it has a case.
func TestDropReasons(t *testing.T) {
	spec := must(ebpf.LoadCollectionSpec("objects/tc_bpfel.o"))(t)
	var reasons *btf.Enum
	succeed(t, spec.Types.TypeByName("drop_reason", &reasons))
	cases := map[string]func(*testing.T){
		"MALFORMED": dropped("drop_malformed", func(_ *testing.T, w *world) packet {
			return w.first(w.client, w.service).with(func(p *packet) { p.mangle = func(ip []byte) { ip[0] = 0x55 } })
		}),
		"EXTENSIONS": dropped("drop_extensions", func(_ *testing.T, w *world) packet {
			return w.first(w.client, w.service).with(func(p *packet) {
				for range 9 {
					p.extensions = append(p.extensions, extension{kind: destinationOptions})
				}
			})
		}),
		"NO_BACKEND": dropped("drop_no_backend", func(t *testing.T, w *world) packet {
			w.serve(t, w.service) // other packets are answered
			return w.first(w.client, w.service).with(func(p *packet) { p.flags = flagRST })
		}),
		"BACKEND_MISSING": dropped("drop_backend_missing", toRow(objects.Service{Id: 9, Revision: 9, Count: 1, Total: 1})),
		"TABLE_FULL":      tableFull,
		"CLIENT_SHARE":    clientShare,
		"PORT_EXHAUSTED":  portsExhausted,
	}
	for _, reason := range reasons.Values {
		name := strings.TrimPrefix(reason.Name, "DROP_")
		switch name {
		case "UNSPECIFIED", "COUNT": // no reasons
		case "REWRITE": // the kernel has no memory to write to the packet: cannot be provoked
		case "NO_ROUTE", "NO_SOURCE", "TUNNEL_ROUTE": // TestNoWay, which has a network
		case "TOO_BIG", "TTL": // TestErrorsOnTheWay
		case "SOURCE", "SOURCE_MAC", "NEIGHBOUR", "ETHERTYPE": // TestGuard
		case "POLICY_EGRESS", "POLICY_INGRESS": // TestPolicies
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

// dropped returns a test that a packet is dropped and counted.
func dropped(counter string, provoke func(*testing.T, *world) packet) func(*testing.T) {
	return func(t *testing.T) {
		w := pods(t, true, protoTCP)
		w.check(t, fromHost, provoke(t, w), wants{actionDrop, nil, once(counter)})
	}
}

// toRow sends a packet to a service with the row.
func toRow(row objects.Service) func(*testing.T, *world) packet {
	return func(t *testing.T, w *world) packet {
		w.store(t, row)
		return w.first(w.client, w.service)
	}
}

// tableFull has room for one row of connections.
func tableFull(t *testing.T) {
	b := newBench(t)
	spec := must(ebpf.LoadCollectionSpec("objects/tc_bpfel.o"))(t)
	spec.Maps["connections"].MaxEntries = 1
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
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Connections: 64, Services: 8, Backends: 8, Endpoints: 8}})
	w := newWorld(benchOn(t, d), false, protoTCP)
	w.reset(t, objects.AttachHost)
	w.serve(t, w.service, w.backend)
	for port := range uint16(35) {
		w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 1024+port), w.service))
	}
	w.gets(t, fromHost, w.first(w.client, w.service), "drop: drop_client_share")
	// Another client has room.
	w.send(t, fromHost, w.first(netip.AddrPortFrom(w.backend.Addr(), 1024), w.service))
}

// portsExhausted has a backend that a client already uses from each of its ports, through another service.
func portsExhausted(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Connections: 1 << 18, Services: 8, Backends: 8, Endpoints: 8}})
	w := newWorld(benchOn(t, d), false, protoUDP)
	w.takePorts(t)
	w.serve(t, w.service, w.backend)
	w.gets(t, fromHost, w.first(w.client, w.service), "drop: drop_port_exhausted")
}
