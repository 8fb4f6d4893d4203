// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/bench/host"
	"mustang/internal/lab"
	"mustang/internal/netstat"
	"mustang/internal/result"
	"mustang/internal/service"
)

const (
	memoryBackends = 4 // the number of backends of each service whose memory is measured
	// mostKept is the number of connections that empties conntrack: a third of a client's ports, so that few come again.
	mostKept = 10_000
	// The kernel frees deleted objects in the background. Its memory has settled when it has shrunk by at most
	// settledBytes in settleTime; the wait ends after settleTimeout.
	settleTime    = 500 * time.Millisecond
	settleTimeout = 20 * time.Second
	settledBytes  = 64 << 10
	// While a change is awaited, a denied connection is given up after openTime, and the next begins. A connection that
	// should open counts as denied after deniedTime, which schedulers rarely exceed, if the next one does not open either.
	openTime   = 2 * time.Millisecond
	deniedTime = 100 * time.Millisecond
)

func (t *tableSample) program(ctx context.Context) error {
	services := t.lab.AllServices(lab.OtherBackends)
	if err := t.lab.ClearServices(ctx); err != nil {
		return err
	}
	started := time.Now()
	err := t.lab.WriteServices(ctx, services)
	t.setRate(len(services), "service", result.UnitServices, float64(len(services))/time.Since(started).Seconds())
	t.Histogram = nil
	return err
}

// memory writes all services with more backends into empty tables.
func (t *tableSample) memory(ctx context.Context) error {
	services := t.lab.AllServices(memoryBackends)
	if err := t.lab.ClearServices(ctx); err != nil {
		return err
	}
	used := settledMemory
	if d := t.lab.Datapath(); d != nil { // whose maps keep the memory of deleted rows for new ones
		used = d.Services().Memory
	}
	before, err := used()
	if err == nil {
		err = t.lab.WriteServices(ctx, services)
	}
	if err != nil {
		return err
	}
	after, err := used()
	if err != nil {
		return err
	}
	t.setRate(len(services), "service", result.UnitBytesPerService, max(float64(after)-float64(before),
		0)/float64(len(services)))
	t.Histogram = nil
	if err := t.lab.ClearServices(ctx); err != nil {
		return err
	}
	return t.lab.WriteServices(ctx, t.lab.AllServices(lab.OtherBackends))
}

func settledMemory() (uint64, error) {
	last := uint64(math.MaxUint64)
	for deadline := time.Now().Add(settleTimeout); ; time.Sleep(settleTime) {
		now, err := host.KernelMemory()
		if err != nil || now+settledBytes >= last || time.Now().After(deadline) {
			return now, err
		}
		last = now
	}
}

// changeService gives a service picked at random another backend, and the old ones back, and measures
// the time until a connection reaches the new one.
func (t *tableSample) changeService(ctx context.Context) error {
	services := t.lab.AllServices(lab.OtherBackends)
	i := rand.IntN(len(services))
	for !isOther(services[i]) {
		i = rand.IntN(len(services))
	}
	for _, backends := range [][]service.Backend{service.Backends(newBackend()), services[i].Backends} {
		services[i].Backends = backends
		change := func() error { return t.lab.ChangeService(ctx, services, i) }
		if err := t.change(ctx, change, func() (time.Time, bool, error) { return t.reach(services[i]) }); err != nil {
			return fmt.Errorf("service %s: %w", services[i].Frontend, err)
		}
	}
	return nil
}

func (t *tableSample) changeRule(ctx context.Context) error {
	for _, allow := range []bool{true, false} {
		if err := t.change(ctx, func() error { return t.lab.AllowDenied(ctx, allow) }, t.lookFor(allow)); err != nil {
			return err
		}
	}
	return nil
}

func isOther(s service.Service) bool { return len(s.Backends) == lab.OtherBackends }

func newBackend() netip.AddrPort {
	return netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort+lab.OtherBackends)
}

func leadsTo(s service.Service, o tcpConnection) bool {
	return slices.ContainsFunc(s.Backends, func(b service.Backend) bool { return b.Addr == o.at })
}

// reach opens a connection to a service and closes it. It returns when the connection was open, and whether it shows
// that the service has its backends. Conntrack keeps closed connections for seconds: packets from a port used again go
// to the previous backend. So such a connection shows nothing.
func (c *connector) reach(s service.Service) (opened time.Time, shows bool, err error) {
	if len(c.kept) >= mostKept {
		if err := c.forget(); err != nil {
			return opened, false, err
		}
	}
	o, err := c.open(s.Frontend)
	if err != nil {
		return opened, false, err
	}
	opened = time.Now()
	local, _ := socketNames(o.client)
	t := tuple{local.Port(), s.Frontend}
	_, again := c.kept[t]
	c.kept[t] = struct{}{}
	o.close()
	return opened, !again && leadsTo(s, o), nil
}

func (c *connector) forget() error {
	clear(c.kept)
	return netstat.Flush(c.host)
}

// lookFor returns a look that finds out whether connections are allowed or denied: the end of one that opens, or the
// begin of one that does not.
func (c *connector) lookFor(allow bool) look {
	return func() (time.Time, bool, error) {
		if allow {
			open, err := c.try(denied, openTime)
			return time.Now(), open, err
		}
		at := time.Now()
		open, err := c.try(denied, deniedTime)
		if !open { // also after an error: a policy that comes amid a handshake leaves it half done
			open, err = c.try(denied, deniedTime)
		}
		return at, !open, err
	}
}
