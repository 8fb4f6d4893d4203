// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/service"
)

// changeTimeout limits the time until a change takes effect.
const changeTimeout = 2 * time.Minute

// mostKept is the number of connections after which conntrack is emptied: a third of a client's ports, so that few come again.
const mostKept = 10_000

// client connects to services of a lab, and has the listeners of all their backends.
type client struct {
	*connector
	host *netns.Namespace
	kept map[tuple]struct{} // the connections of reach since the last forget
}

// tuple is what tells a client's connections apart.
type tuple struct {
	port    uint16
	service netip.AddrPort
}

// newClient listens at the backends of the task's services, and at one more port.
func newClient(t Task) (client, error) {
	var at []netip.AddrPort
	for port := range uint16(lab.OtherBackends + 1) {
		at = append(at, netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort+port))
	}
	host, err := t.Lab.Namespace(lab.Host)
	if err != nil {
		return client{}, err
	}
	c, err := t.connector(at...)
	return client{c, host, make(map[tuple]struct{})}, err
}

// changed is the backend that no service has before a change.
func changed() netip.AddrPort {
	return netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort+lab.OtherBackends)
}

// connectAll connects to services picked at random, one after the other. It returns how long
// each took, and the addresses of the last as evidence of all.
func (c client) connectAll(ctx context.Context, services []service.Service, n int) (m load.Measurement, took []time.Duration, err error) {
	services = slices.DeleteFunc(services, func(s service.Service) bool { return !isOther(s) })
	if len(services) == 0 {
		return m, nil, errors.New("the lab lacks other services")
	}
	err = c.on(func() error {
		for i := range n {
			if err := ctx.Err(); err != nil {
				return err
			}
			s := services[rand.IntN(len(services))]
			o, err := c.open(s.Frontend)
			if err != nil {
				return err
			}
			took = append(took, o.took)
			if i == n-1 {
				m = o.proof(n)
				if !has(s, o) {
					return fmt.Errorf("%s answered for %s", o.at, s.Frontend)
				}
			}
			o.close()
		}
		return nil
	})
	return m, took, err
}

// has reports whether a service has the backend of a connection.
func has(s service.Service, o connection) bool {
	return slices.ContainsFunc(s.Backends, func(b service.Backend) bool { return b.Addr == o.at })
}

// awaitChange changes service i, and connects to it all the while. It returns the time from the
// begin of the change to the end of the first connection to a new backend.
func (c client) awaitChange(ctx context.Context, l *lab.Lab, services []service.Service, i int) (took time.Duration, err error) {
	s := services[i]
	var changed chan error
	begun := make(chan time.Time, 1)
	err = c.on(func() error {
		switch _, isNew, err := c.reach(s); {
		case err != nil:
			return err
		case isNew:
			return fmt.Errorf("%s has reached a new backend before its change", s.Frontend)
		}
		changed = make(chan error, 1)
		go func() { // on another CPU, which may take its time to begin
			begun <- time.Now()
			changed <- l.ChangeService(ctx, services, i)
		}()
		for deadline := time.Now().Add(changeTimeout); time.Now().Before(deadline) && ctx.Err() == nil; {
			opened, isNew, err := c.reach(s)
			if err != nil {
				return err
			}
			if isNew {
				took = opened.Sub(<-begun)
				return nil
			}
		}
		return fmt.Errorf("the change of %s had no effect within %v", s.Frontend, changeTimeout)
	})
	if changed != nil {
		err = errors.Join(err, <-changed)
	}
	return took, err
}

// reach opens a connection to a service and closes it. It returns when it was open, and whether it shows that the service
// has its backends. Conntrack keeps closed connections for seconds, and takes the packets from a port that comes again to
// where they went before, so such a connection shows nothing.
func (c client) reach(s service.Service) (opened time.Time, shows bool, err error) {
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
	t := tuple{o.clientPort(), s.Frontend}
	_, again := c.kept[t]
	c.kept[t] = struct{}{}
	o.close()
	return opened, !again && has(s, o), nil
}

// forget empties the table of conntrack that the client's connections are in.
func (c client) forget() error {
	clear(c.kept)
	return netstat.Flush(c.host)
}
