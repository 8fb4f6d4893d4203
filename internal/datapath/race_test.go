// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"mustang/internal/datapath/conntrack"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// TestDeleteWhileOpening deletes a pod, or a service, while other pods open connections to it: none may be left that knows
// the pod or the service.
func TestDeleteWhileOpening(t *testing.T) {
	w := newWorld(newBench(t), false, protoUDP)
	for _, c := range []struct {
		name   string
		remove func() error
	}{
		{"endpoint", func() error { return w.Endpoints().Delete(t.Context(), 1) }},
		{"service", func() error {
			return w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: w.service, Protocol: service.UDP})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 300 {
				w.reset(t, objects.AttachHost)
				id := w.serve(t, w.service, w.backend)
				stop := w.opening(t)
				succeed(t, c.remove())
				stop()
				w.unknown(t, id, c.name == "service")
			}
		})
	}
}

// opening opens connections to the service on another CPU until the result is called.
func (w *world) opening(t *testing.T) (stop func()) {
	t.Helper()
	p := w.loaded(t, fromHost)
	var ended atomic.Bool
	var running sync.WaitGroup
	begun := make(chan struct{})
	running.Go(func() {
		for port := uint16(1024); !ended.Load() && port < 5000; port++ {
			if _, _, err := p.Test(w.next(netip.AddrPortFrom(w.client.Addr(), port), w.service).frame()); err != nil {
				t.Error(err)
			}
			if port == 1034 {
				close(begun)
			}
		}
	})
	<-begun
	return func() {
		ended.Store(true)
		running.Wait()
	}
}

// unknown fails the test if a valid connection knows the first pod, or the service with the id.
func (w *world) unknown(t *testing.T, id uint32, service bool) {
	t.Helper()
	known := make(map[netip.AddrPort]bool)
	succeed(t, w.objects.Slots.Each(func(_ uint32, slot objects.Slot) bool {
		if service && slot.Service == id || !service && slot.Backend == 1 {
			known[rows.DecodeAddrPort(slot.From.Saddr, slot.From.Sport)] = true
		}
		return true
	}))
	valid := must(w.ConnectionTable().List(conntrack.Filter{}))(t)
	for _, c := range valid {
		if known[c.Client] {
			t.Fatalf("connection %+v is valid", c)
		}
	}
}
