// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"maps"
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
	if err := table.NextKey(nil, &key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("half a connection stayed: %+v, %v", key, err)
	}
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

// The receivers of TestDelivery.
const (
	receiverSelf    = "the sending pod"
	receiverSegment = "a pod on the segment"
	receiverPeer    = "a pod with a peer"
	receiverDevice  = "a pod with a device"
	receiverAway    = "another node"
)

// deliveries is the table of next_hop.h: the counter of the next hop, by attach point and receiver.
func deliveries() map[objects.AttachPoint]map[string]string {
	host := map[string]string{
		receiverSelf: "redirect_peer", receiverSegment: "passed", receiverPeer: "redirect_peer",
		receiverDevice: "redirect_device", receiverAway: "passed",
	}
	netkit := maps.Clone(host)
	netkit[receiverSelf], netkit[receiverPeer] = "redirect_device", "redirect_device"
	return map[objects.AttachPoint]map[string]string{
		objects.AttachHost: host, objects.AttachTun: host, objects.AttachNetkit: netkit,
		objects.AttachPod: {
			receiverSelf: "hairpin", receiverSegment: "l2_delivered", receiverPeer: "passed", receiverDevice: "passed",
			receiverAway: "passed",
		},
		objects.AttachUplink: { // a client outside is no pod; TestBackendOnAnotherNode has the way to another node
			receiverSegment: "l2_delivered", receiverPeer: "redirect_peer", receiverDevice: "redirect_device",
		},
	}
}

// TestDelivery sends a packet to a service from each attach point to each kind of receiver.
func TestDelivery(t *testing.T) {
	b := newBench(t)
	for at, row := range deliveries() {
		for receiver, counter := range row {
			for _, v6 := range []bool{false, true} {
				t.Run(string(at)+"/"+receiver+"/"+map[bool]string{false: "ipv4", true: "ipv6"}[v6], func(t *testing.T) {
					w := newWorld(b, v6, protoTCP)
					if at == objects.AttachTun {
						w.tunAddresses()
					}
					w.clear(t)
					h, p := w.deliver(t, at, receiver)
					before := counts(t, b.Datapath)
					action, _ := b.run(t, h, p.frame())
					want := once(h.Program, "new_connection", "forward", counter)
					if got := delta(t, b.Datapath, before); !maps.Equal(got, want) {
						t.Errorf("counted %v, want %v", got, want)
					}
					redirects := counter != "passed" && counter != "l2_delivered"
					if redirects != (action == actionRedirect) || !redirects && action != actionNext {
						t.Errorf("action %d beside %s", int32(action), counter)
					}
				})
			}
		}
	}
}

// deliver makes the endpoints of a client at an attach point and of a receiver, and a service that the receiver serves.
// It returns the client's program and packet.
func (w *world) deliver(t *testing.T, at objects.AttachPoint, receiver string) (objects.Hook, packet) {
	t.Helper()
	client, backend := pod{2, objects.AttachHost, "0c", ""}, pod{1, objects.AttachHost, "0a", ""}
	if at == objects.AttachPod || receiver == receiverSegment {
		client = pod{2, objects.AttachPod, "0c", "s"}
	}
	switch receiver {
	case receiverSelf:
		client.id, backend = 1, client
	case receiverSegment:
		backend = pod{1, objects.AttachPod, "0a", "s"}
		if at == objects.AttachUplink {
			backend.segment = "\x01" // the index of the device of test runs
		}
	case receiverDevice:
		backend.at = tapPod
	}
	backend.id = 1
	from, to := w.client, w.backend
	if at == objects.AttachUplink {
		from = w.outsider
	} else {
		w.endpoint(t, client, from.Addr())
	}
	if receiver == receiverAway {
		to = w.remote
	} else if receiver == receiverSelf {
		to = netip.AddrPortFrom(from.Addr(), 8080)
	} else {
		w.endpoint(t, backend, to.Addr())
	}
	w.serve(t, w.service, to)
	p := w.first(from, w.service)
	switch at {
	case objects.AttachUplink:
		return fromUplink, p.arriving("aa")
	case objects.AttachTun:
		return fromTun, p.without()
	}
	return objects.Hook{Point: at, Program: fromHost.Program}, p
}
