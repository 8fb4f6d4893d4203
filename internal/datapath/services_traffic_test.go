// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// trafficOf returns that of the service with a frontend.
func trafficOf(t *testing.T, d *Datapath, frontend netip.AddrPort, p service.Protocol) flows.ServiceTraffic {
	t.Helper()
	s := must(d.Services().Get(t.Context(), service.Key{Frontend: frontend, Protocol: p}))(t)
	all := must(d.Flows().ServiceTraffic())(t)
	return all[s.ID]
}

// wantAllCounted compares what was counted for all services that there are with what was counted of all packets.
func wantAllCounted(t *testing.T, d *Datapath) {
	t.Helper()
	want := settled(t, d)
	all := must(d.Flows().ServiceTraffic())(t)
	var to, back uint64
	for _, traffic := range all {
		to, back = to+traffic.To.Packets, back+traffic.Back.Packets
	}
	if to == 0 || to != want["forward"] || back != want["reverse"] {
		t.Errorf("packets of services: %d to backends, %d back; of all: %d, %d", to, back, want["forward"], want["reverse"])
	}
}

// TestServiceTraffic counts the packets of two services that share a backend. A change of a service's backends goes on with the count.
func TestServiceTraffic(t *testing.T) {
	w := newWorld(benchOn(t, openTest(t)), false, protoTCP)
	w.reset(t, objects.AttachHost)
	w.serve(t, w.service, w.backend)
	w.serve(t, w.other, w.backend)
	want := map[netip.AddrPort]*flows.ServiceTraffic{w.service: {}, w.other: {}}
	send := func(from, to netip.AddrPort, first bool, service netip.AddrPort) {
		t.Helper()
		p := w.next(from, to)
		if first {
			p = w.first(from, to)
		}
		w.send(t, fromHost, p)
		side := &want[service].To
		if from == w.backend {
			side = &want[service].Back
		}
		*side = Traffic{Packets: side.Packets + 1, Bytes: side.Bytes + uint64(len(p.frame()))}
	}
	check := func(when string) {
		t.Helper()
		for frontend, want := range want {
			if got := trafficOf(t, w.Datapath, frontend, service.TCP); got != *want {
				t.Errorf("%s: %s: %+v, want %+v", when, frontend, got, *want)
			}
		}
	}
	client2 := netip.AddrPortFrom(w.client.Addr(), w.client.Port()+1)
	send(w.client, w.service, true, w.service)
	send(client2, w.other, true, w.other)
	check("SYN")
	for range 7 {
		send(w.client, w.service, false, w.service)
		send(w.backend, w.client, false, w.service)
		send(w.backend, client2, false, w.other)
	}
	check("connections")
	w.serve(t, w.service, w.backend, w.remote)
	send(w.client, w.service, false, w.service)
	check("after a change")
	succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: w.service, Protocol: service.TCP}))
	w.serve(t, w.service, w.backend)
	*want[w.service] = flows.ServiceTraffic{}
	check("made anew")
}

// TestNumbers gives out ids until the rows of counts are used again: no two services have one, and each begins with zero.
func TestNumbers(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Services: 64, Backends: 64, Connections: 64, Endpoints: 16}})
	w := newWorld(benchOn(t, d), false, protoTCP)
	w.reset(t, objects.AttachHost)
	put := func(port uint16) uint32 {
		t.Helper()
		_, id, err := w.Services().Put(t.Context(), service.CLI, service.Service{
			Frontend: netip.AddrPortFrom(netip.MustParseAddr("10.96.7.7"), port), Protocol: service.TCP, Backends: service.Backends(w.backend),
		})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	const services = 10
	first := make([]uint32, services)
	for i := range first {
		first[i] = put(uint16(i + 1))
	}
	gone := netip.AddrPortFrom(netip.MustParseAddr("10.96.7.7"), services)
	w.send(t, fromHost, w.first(w.client, gone))
	if traffic := trafficOf(t, w.Datapath, gone, service.TCP); traffic.To.Packets != 1 {
		t.Fatalf("%+v, want a packet", traffic)
	}
	succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: gone, Protocol: service.TCP}))
	state := must(readState(w.objects))(t)
	state.LastService = first[0] - 1 + objects.CountedServices
	succeed(t, w.objects.State.Put(0, state))
	if id, want := put(services+1), first[services-1]+objects.CountedServices; id != want {
		t.Errorf("id %d, want %d", id, want)
	}
	all, err := w.Flows().ServiceTraffic()
	if err != nil || len(all) != services {
		t.Errorf("%d services: %v, want %d", len(all), err, services)
	}
	for id, traffic := range all {
		if traffic != (flows.ServiceTraffic{}) {
			t.Errorf("service %d begins with %+v", id, traffic)
		}
	}
}
