// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/kube"
	"mustang/internal/service"
	"mustang/internal/service/health"
	"mustang/internal/service/manifest"
)

// isRefused tells whether an error is about what one object asks for: another has it, there is no room for it, or the
// node has it not. Such an object waits, and no round has failed for it: whoever may write one would else take the node
// out of service.
func isRefused(err error) bool {
	var (
		conflict *datapath.ConflictError
		full     *objects.FullError
		port     *health.PortError
		absent   *AbsentError
		quota    *QuotaError
	)
	return errors.As(err, &conflict) || errors.As(err, &full) || errors.As(err, &port) || errors.As(err, &absent) ||
		errors.As(err, &quota)
}

// parts returns the errors that were joined.
func parts(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, parts(e)...)
	}
	return all
}

// split returns those of joined errors that are about single objects, and the others.
func split(err error) (refused, failed error) {
	var lists [2][]error
	for _, e := range parts(err) {
		if isRefused(e) {
			lists[0] = append(lists[0], e)
		} else {
			lists[1] = append(lists[1], e)
		}
	}
	return errors.Join(lists[0]...), errors.Join(lists[1]...)
}

// fullMap returns the error of a full map among failures; empty: no map is full.
func (f failures) fullMap() string {
	for _, err := range f {
		if full := (*objects.FullError)(nil); errors.As(err, &full) {
			return full.Error()
		}
	}
	return ""
}

// note notes which services could not be written.
func (a *Agent) note(c changes, failed failures, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if all {
		clear(a.failed)
	}
	for key := range c {
		delete(a.failed, key)
	}
	why, everywhere := map[manifest.Name][]string{}, map[manifest.Name][]string{}
	for key, err := range failed {
		a.failed[key] = err.Error()
		name := a.services.wanted.holder(key)
		switch {
		case name == manifest.Name{} || !isRefused(err):
		case errors.As(err, new(*QuotaError)): // nodes have maps of the same size
			everywhere[name] = []string{err.Error()}
		default:
			why[name] = append(why[name], err.Error())
		}
	}
	for _, texts := range why {
		slices.Sort(texts)
	}
	a.warnings.notServed(why, false)
	a.warnings.notServed(everywhere, true)
}

// attachAccess attaches what lets others than pods reach services, and notes whether the node lacks the addresses of
// its object.
func (a *Agent) attachAccess(ctx context.Context, addresses []netip.Addr) error {
	err := a.Access.Attach(ctx, addresses)
	a.mu.Lock()
	a.absent = ""
	if absent := new(AbsentError); errors.As(err, &absent) {
		a.absent = absent.Error()
		a.warnings.add(kube.Warning{Kind: kube.Nodes, Name: a.Node, Reason: "NotServed", Text: a.absent})
	}
	a.mu.Unlock()
	return errors.Join(err, a.findNodePorts(addresses))
}

// answerChecks has the health checks of services answered, and notes at which ports they cannot be: a process of the
// node has them.
func (a *Agent) answerChecks(checked []service.Service) error {
	holders := map[service.Key]manifest.Name{}
	a.mu.Lock()
	for _, s := range checked {
		holders[s.Key()] = a.services.wanted.holder(s.Key())
	}
	a.mu.Unlock()
	err := a.Health.Apply(checked, func(s service.Service) (namespace, name string) {
		holder := holders[s.Key()]
		return holder.Namespace, holder.Name
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unanswered = map[uint16]string{}
	for _, e := range parts(err) {
		if port := new(health.PortError); errors.As(e, &port) {
			a.unanswered[port.Port] = e.Error()
		}
	}
	why := map[manifest.Name][]string{}
	for _, s := range checked {
		name := holders[s.Key()]
		if text := a.unanswered[s.HealthCheckPort]; text != "" && !slices.Contains(why[name], text) {
			why[name] = append(why[name], text)
		}
	}
	a.warnings.notServed(why, false)
	return err
}
