// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/host"
	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/result"
	"mustang/internal/service"
)

const (
	// firstPackets is the number of connections of a sample of first packets.
	firstPackets = 1000
	// serviceTime is how long services change, see [mostChanges].
	serviceTime = time.Second
	// memoryBackends is the number of backends of each service whose memory is measured.
	memoryBackends = 4
	// mostKept is the number of connections after which conntrack is emptied: a third of a client's ports, so that few
	// come again.
	mostKept = 10_000
)

func (t *tableSample) services(ctx context.Context) (result.Evidence, error) {
	c, err := t.serviceClient()
	if err != nil {
		return result.Evidence{}, err
	}
	defer c.close()
	if err := errors.Join(c.forget(), t.begin()); err != nil {
		return result.Evidence{}, err
	}
	connections := proofs
	switch t.Workload {
	case result.WorkloadServiceProgram:
		err = t.program(ctx)
	case result.WorkloadServiceMemory:
		err = t.memory(ctx)
	case result.WorkloadServiceChange:
		err = t.changeServices(ctx, c)
	default:
		connections = firstPackets
	}
	if err != nil {
		return result.Evidence{}, err
	}
	recorder := evidence.Recorder{Lab: t.lab}
	return recorder.Record(func() (evidence.Flow, error) {
		proof, err := t.connectAll(ctx, c, connections)
		path := t.path
		path.Connect, path.Listen = proof.Measurement.ClientPeer, proof.Measurement.ServerLocal
		return evidence.Flow{Path: path, Measurement: proof.Measurement}, errors.Join(err, t.end())
	})
}

// connectAll connects to services picked at random, one after the other. It returns the addresses of the last as
// evidence of all. Those of a sample of first packets are its figures.
func (t *tableSample) connectAll(ctx context.Context, c serviceClient, n int) (proof evidence.Flow, err error) {
	all := t.lab.AllServices(lab.OtherBackends)
	services := slices.DeleteFunc(all, func(s service.Service) bool { return !isOther(s) })
	if len(services) == 0 {
		return proof, errors.New("the lab lacks other services")
	}
	err = c.on(func() error {
		for range n {
			if err := ctx.Err(); err != nil {
				return err
			}
			s := services[rand.IntN(len(services))]
			o, err := c.open(s.Frontend)
			if err != nil {
				return err
			}
			if n == firstPackets {
				_ = t.Histogram.RecordValue(int64(o.took)) // below the limit of a connection
			}
			proof.Measurement = o.proof(n)
			o.close()
			if !leadsTo(s, o) {
				return fmt.Errorf("%s answered for %s", o.at, s.Frontend)
			}
		}
		return nil
	})
	if n == firstPackets {
		percentile := 50.0
		if t.Workload == result.WorkloadFirstPacketP99 {
			percentile = 99
		}
		t.setTimes(n, "transaction", percentile)
	}
	return proof, err
}

// program writes all services into empty tables.
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
	if err != nil {
		return err
	}
	if err := t.lab.WriteServices(ctx, services); err != nil {
		return err
	}
	after, err := used()
	if err != nil {
		return err
	}
	bytes := max(float64(after)-float64(before), 0)
	t.setRate(len(services), "service", result.UnitBytesPerService, bytes/float64(len(services)))
	t.Histogram = nil
	if err := t.lab.ClearServices(ctx); err != nil {
		return err
	}
	return t.lab.WriteServices(ctx, t.lab.AllServices(lab.OtherBackends))
}

// The kernel frees what was deleted in the background. Its memory has settled when it has shrunk by
// no more than settledBytes in settleTime; nobody waits longer than settleTimeout.
const (
	settleTime    = 500 * time.Millisecond
	settleTimeout = 20 * time.Second
	settledBytes  = 64 << 10
)

// settledMemory returns the bytes of the kernel's memory, once it has settled.
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

// changeServices gives services picked at random another backend, and the old ones back, and measures
// the time until a connection reaches the new one.
func (t *tableSample) changeServices(ctx context.Context, c serviceClient) error {
	services := t.lab.AllServices(lab.OtherBackends)
	for started := time.Now(); t.Count < 2 || t.Count < mostChanges && time.Since(started) < serviceTime; {
		i := rand.IntN(len(services))
		for !isOther(services[i]) {
			i = rand.IntN(len(services))
		}
		old := services[i].Backends
		for _, backends := range [][]service.Backend{service.Backends(newBackend()), old} {
			services[i].Backends = backends
			change := func() error { return t.lab.ChangeService(ctx, services, i) }
			look := func() (time.Time, bool, error) { return c.reach(services[i]) }
			if err := t.change(ctx, c.connector, change, look); err != nil {
				return fmt.Errorf("service %s: %w", services[i].Frontend, err)
			}
		}
	}
	t.setTimes(int(t.Count), "change", 50)
	return nil
}

func isOther(s service.Service) bool { return len(s.Backends) == lab.OtherBackends }

// newBackend is the backend that no service has before a change.
func newBackend() netip.AddrPort {
	return netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort+lab.OtherBackends)
}

// serviceClient connects to services of a lab, and has the listeners of all their backends.
type serviceClient struct {
	*connector
	host *netns.Namespace
	kept map[tuple]struct{} // the connections of reach since the last forget
}

// tuple is what tells a client's connections apart.
type tuple struct {
	port    uint16
	service netip.AddrPort
}

// serviceClient listens at the backends of the lab's services, and at one more port.
func (t *tableSample) serviceClient() (serviceClient, error) {
	var at []netip.AddrPort
	for port := range uint16(lab.OtherBackends + 1) {
		at = append(at, netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort+port))
	}
	host, err := t.lab.Namespace(lab.Host)
	if err != nil {
		return serviceClient{}, err
	}
	c, err := t.connector(at...)
	return serviceClient{c, host, map[tuple]struct{}{}}, err
}

func leadsTo(s service.Service, o tcpConnection) bool {
	return slices.ContainsFunc(s.Backends, func(b service.Backend) bool { return b.Addr == o.at })
}

// reach opens a connection to a service and closes it. It returns when it was open, and whether it shows that the
// service has its backends. Conntrack keeps closed connections for seconds, and takes the packets from a port that comes
// again to where they went before, so such a connection shows nothing.
func (c serviceClient) reach(s service.Service) (opened time.Time, shows bool, err error) {
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

// forget empties the table of conntrack that the client's connections are in.
func (c serviceClient) forget() error {
	clear(c.kept)
	return netstat.Flush(c.host)
}
