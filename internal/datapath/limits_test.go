// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"mustang/internal/lb"
	"mustang/internal/testkit"
)

// TestTableFull has a connection table that does not make room as LRU does.
func TestTableFull(t *testing.T) {
	b := newBench(t)
	spec, err := loadMustang()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps[mustangMapConnections].Type = ebpf.Hash
	spec.Maps[mustangMapConnections].MaxEntries = 1
	pinned := replacements(slots(&b.maps))
	delete(pinned, mustangMapConnections)
	for name, m := range pinned {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: pinned})
	if err != nil {
		t.Fatal(err)
	}
	defer collection.Close()
	b.programs[fromHost] = collection.Programs[mustangProgFromPod]
	table := collection.Maps[mustangMapConnections]
	w := newWorld(b, false, protoTCP)
	w.serve(t, w.service, w.backend)
	full := wants{verdictDrop, nil, once("drop_table_full")}

	// Room for the way back only, which must not stay.
	w.check(t, fromHost, w.first(w.client, w.service), full)
	var key mustangTuple
	if err := table.NextKey(nil, &key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("a half connection stayed: %+v, %v", key, err)
	}
	// Room for nothing.
	if err := table.Put(mustangTuple{Proto: 1}, mustangConnection{}); err != nil {
		t.Fatal(err)
	}
	w.check(t, fromHost, w.first(w.client, w.service), full)
}

// TestPortsExhausted has a backend that a client uses from each of its ports, by another service.
func TestPortsExhausted(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", MaxConnections: 1 << 18, MaxServices: 8, MaxBackends: 8, MaxEndpoints: 8})
	w := newWorld(benchOn(t, d), false, protoUDP)
	var keys []mustangTuple
	var values []mustangConnection
	for port := 1; port < 1<<16; port++ {
		keys = append(keys, mustangTuple{Saddr: encodeAddr(w.backend.Addr()), Sport: toBE(w.backend.Port()),
			Daddr: encodeAddr(w.client.Addr()), Dport: toBE(uint16(port)), Proto: protoUDP})
		values = append(values, mustangConnection{To: mustangTuple{Saddr: encodeAddr(w.other.Addr())}})
	}
	if n, err := d.maps.Connections.BatchUpdate(keys, values, nil); err != nil || n != len(keys) {
		t.Fatal(n, err)
	}
	w.serve(t, w.service, w.backend)
	w.check(t, fromHost, w.first(w.client, w.service), wants{verdictDrop, nil, once("drop_port_exhausted")})
	w.connected(t)
}

// TestSegments passes a packet that is to be cut by the card: how, must not change.
func TestSegments(t *testing.T) {
	b := newBench(t)
	for _, v6 := range []bool{false, true} {
		w := newWorld(b, v6, protoTCP)
		w.reset(t, hostSide)
		w.serve(t, w.service, w.backend)
		p := w.first(w.client, w.service).with(func(p *packet) { p.payload = string(make([]byte, 3000)) })
		// struct __sk_buff of <linux/bpf.h>.
		const segments, size, length = 164, 176, 192
		in, out := make([]byte, length), make([]byte, length)
		binary.NativeEndian.PutUint32(in[segments:], 3)
		binary.NativeEndian.PutUint32(in[size:], 1400)
		opts := &ebpf.RunOptions{Data: p.frame(), DataOut: make([]byte, 4096), Context: in, ContextOut: out}
		verdict, err := b.loaded(t, fromHost).Run(opts)
		if err != nil {
			t.Fatal(err)
		}
		if verdict != verdictRedirect || string(opts.DataOut) != string(p.became(w.client, w.backend, "0a").frame()) {
			t.Errorf("verdict %d, or the packet came out wrong", verdict)
		}
		if got := binary.NativeEndian.Uint32(out[segments:]); got != 3 {
			t.Errorf("%d segments came of 3", got)
		}
	}
}

// TestSpread wants every backend to have its share.
func TestSpread(t *testing.T) {
	b := newBench(t)
	for _, v6 := range []bool{false, true} {
		w := newWorld(b, v6, protoTCP)
		w.clear(t)
		var backends []netip.AddrPort
		for port := range uint16(10) {
			backends = append(backends, netip.AddrPortFrom(w.remote.Addr(), 8080+port))
		}
		w.serve(t, w.service, backends...)
		const connections = 1000
		for port := range uint16(connections) {
			w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 32768+2*port), w.service))
		}
		shares := make(map[netip.AddrPort]int)
		got, err := w.Connections()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range got {
			shares[c.Backend]++
		}
		// A fair die gives each 100, and with a probability under one in a million less than 55 or more than 150.
		for _, backend := range backends {
			if n := shares[backend]; n < 55 || n > 150 {
				t.Errorf("%s has %d of %d connections", backend, n, connections)
			}
		}
	}
}

// TestFull has tables that are too small for what is put.
func TestFull(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", MaxServices: 2, MaxBackends: 4, MaxConnections: 64, MaxEndpoints: 1})
	backends := func(n int) (list []netip.AddrPort) {
		for i := range n {
			list = append(list, netip.AddrPortFrom(netip.MustParseAddr("192.168.10.10"), uint16(1+i)))
		}
		return list
	}
	for _, c := range []struct {
		name    string
		service lb.Service
		table   string
	}{
		{"fits", lb.Service{Frontend: netip.MustParseAddrPort("10.96.0.1:1"), Protocol: lb.TCP, Backends: backends(3)}, ""},
		{"backends", lb.Service{Frontend: netip.MustParseAddrPort("10.96.0.2:1"), Protocol: lb.TCP, Backends: backends(2)}, "backends"},
		{"update", lb.Service{Frontend: netip.MustParseAddrPort("10.96.0.1:1"), Protocol: lb.TCP, Backends: backends(2)}, "backends"},
		{"rows", lb.Service{Frontend: netip.MustParseAddrPort("10.96.0.3:1"), Protocol: lb.Any, Backends: backends(1)}, "services"},
		{"still fits", lb.Service{Frontend: netip.MustParseAddrPort("10.96.0.4:1"), Protocol: lb.TCP, Backends: backends(1)}, ""},
	} {
		_, _, err := d.PutService(c.service)
		var full *FullError
		switch {
		case c.table == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.table != "" && (!errors.As(err, &full) || full.Map != c.table):
			t.Errorf("%s: error %v, want that %q is full", c.name, err, c.table)
		}
	}
	wantServices(t, d,
		lb.Service{Frontend: netip.MustParseAddrPort("10.96.0.1:1"), Protocol: lb.TCP, Backends: backends(3)},
		lb.Service{Frontend: netip.MustParseAddrPort("10.96.0.4:1"), Protocol: lb.TCP, Backends: backends(1)})
	wantSlots(t, d, 4)
}
