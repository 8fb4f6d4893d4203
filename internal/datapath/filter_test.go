// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// filterBytes returns the filter.
func filterBytes(t testing.TB, d *Datapath) []byte {
	t.Helper()
	m := d.objects.Filter.Map
	row := make([]byte, m.ValueSize())
	succeed(t, m.Lookup(uint32(0), &row))
	return row
}

// wantFiltered fails the test unless the bits of all services are set. It sets them, so that it finds a fault once.
func wantFiltered(t *testing.T, d *Datapath) {
	t.Helper()
	var keys []objects.ServiceKey
	for row, err := range d.objects.Services.All() {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, row.Key)
	}
	before := filterBytes(t, d)
	succeed(t, d.objects.Filter.Add(keys))
	if !bytes.Equal(before, filterBytes(t, d)) {
		t.Error("a service is stored whose bit in the filter is clear: programs do not find it")
	}
}

// TestFilter is the table of packets whose bits in the filter are set or clear, apart from a service's usual life.
func TestFilter(t *testing.T) {
	runCases(t, objects.AttachHost, []translateCase{
		{"a service that comes when packets flow", 0, func(t *testing.T, w *world) {
			// Random addresses, so that no other case has set the bits.
			w.service = w.random()
			for _, p := range []packet{w.first(w.client, w.service), w.next(w.client, w.service)} {
				w.gets(t, fromHost, p, "next: passed")
			}
			w.serve(t, w.service, w.backend)
			p := w.next(w.client, w.service)
			w.gets(t, fromHost, p, "redirect client>backend 0a: new_connection forward redirect_peer")
			w.gets(t, fromHost, w.next(w.backend, w.client), "redirect service>client 0c: reverse redirect_peer")
		}},
		{"a service that goes", 0, func(t *testing.T, w *world) {
			w.service = w.random()
			w.serve(t, w.service, w.backend)
			w.send(t, fromHost, w.first(w.client, w.service))
			succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: w.service, Protocol: service.Protocol(w.proto)}))
			w.gets(t, fromHost, w.first(w.client, w.service), "next: passed")
			p := w.next(w.client, w.service)
			if w.proto == protoUDP {
				w.gets(t, fromHost, p, "next: passed")
				return
			}
			w.gets(t, fromHost, p, "redirect client>backend 0a: forward redirect_peer")
		}},
		{"the bit of a service that another one shares", 0, func(t *testing.T, w *world) {
			w.service = w.random()
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.collision(t))
			w.gets(t, fromHost, p, "next: passed")
			w.gets(t, fromHost, w.next(w.client, p.dst), "next: passed")
			w.connected(t)
			// It has a service of another owner, and the first one goes.
			must(w.Services().Apply(t.Context(), service.Agent, []service.Service{{
				Frontend: p.dst, Protocol: service.Protocol(w.proto), Backends: service.Backends(w.backend),
			}}))(t)
			must(w.Services().Apply(t.Context(), service.CLI, nil))(t)
			w.gets(t, fromHost, p, "redirect client>backend 0a: new_connection forward redirect_peer")
			w.gets(t, fromHost, w.first(w.client, w.service), "next: passed")
		}},
		{"a pod that packets reach directly and by a service", 0, func(t *testing.T, w *world) {
			w.service = w.random()
			w.backend = netip.AddrPortFrom(w.backend.Addr(), uint16(1+rand.IntN(30000)))
			p := w.next(w.client, w.backend)
			direct := wants{actionRedirect, p.became(w.client, w.backend, "0a"), once("redirect_peer")}
			w.check(t, fromHost, p, direct)
			w.serve(t, w.service, w.backend)
			w.check(t, fromHost, p, direct)
			w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 40001), w.service))
			w.check(t, fromHost, p, direct)
		}},
		{"random services", 0, func(t *testing.T, w *world) {
			for range 20 {
				w.reset(t, objects.AttachHost)
				w.service = w.random()
				w.serve(t, w.service, w.backend)
				p := w.first(w.client, w.service)
				w.gets(t, fromHost, p, "redirect client>backend 0a: new_connection forward redirect_peer")
			}
		}},
	})
}

// random returns an address and port that may be a service's.
func (w *world) random() netip.AddrPort {
	var bytes [16]byte
	for i := range bytes {
		bytes[i] = byte(rand.Uint32())
	}
	port := uint16(1 + rand.IntN(65535))
	bytes[0] = 0xfd
	if w.v6 {
		return netip.AddrPortFrom(netip.AddrFrom16(bytes), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, bytes[1], bytes[2], bytes[3]}), port)
}

// collision returns an address whose bit is that of the service.
func (w *world) collision(t *testing.T) netip.AddrPort {
	t.Helper()
	bit := (*objects.Filter)(nil).Bit(rows.ServiceKey(w.service, service.Protocol(w.proto)))
	for range 1 << 27 {
		if other := w.random(); other != w.service && (*objects.Filter)(nil).Bit(rows.ServiceKey(other, service.Protocol(w.proto))) == bit {
			return other
		}
	}
	t.Fatal("no other address has the bit")
	return netip.AddrPort{}
}

// TestFilterOfOwners lets an owner set one bit of a word again and again while another one sets the others: none is lost.
func TestFilterOfOwners(t *testing.T) {
	d := openTest(t)
	var keys []objects.ServiceKey
	for i := 0; len(keys) < 30; i++ {
		key := objects.ServiceKey{Port: uint16(i), Proto: uint8(1 + i>>16)}
		if (*objects.Filter)(nil).Bit(key)/64 == 7 {
			keys = append(keys, key)
		}
	}
	often := slices.Repeat(keys[:1], 1<<20)
	for range 20 {
		succeed(t, d.objects.Filter.Map.Put(uint32(0), make([]byte, d.objects.Filter.Map.ValueSize())))
		var first sync.WaitGroup
		first.Go(func() {
			if err := d.objects.Filter.Add(often); err != nil {
				t.Error(err)
			}
		})
		for bit := (*objects.Filter)(nil).Bit(keys[0]); filterBytes(t, d)[bit/8]>>(bit%8)&1 == 0; {
		}
		for _, key := range keys[1:] {
			succeed(t, d.objects.Filter.Add([]objects.ServiceKey{key}))
		}
		first.Wait()
		row := filterBytes(t, d)
		for _, key := range keys {
			if bit := (*objects.Filter)(nil).Bit(key); row[bit/8]>>(bit%8)&1 == 0 {
				t.Fatalf("bit %d was lost", bit)
			}
		}
	}
}
