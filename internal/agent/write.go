// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/service/health"
	"mustang/internal/service/manifest"
)

const writeLimit = 20 * time.Second // bounds the search for services that cannot be written, in one round

// err returns the error of a full map, empty without one, and joins all errors, each text once.
func (f failures) err() (fullMap string, all error) {
	of := map[string]error{}
	for _, err := range f {
		of[err.Error()] = err
		if full := (*objects.FullError)(nil); errors.As(err, &full) {
			fullMap = full.Error()
		}
	}
	return fullMap, errors.Join(slices.Collect(maps.Values(of))...)
}

// write writes changes, and returns which failed: they do not block the others. Deletions come first, since others may
// need the rows, then the oldest Service; within a Service, external addresses come last.
func (s *serviceSet) write(ctx context.Context, to Services, c changes) failures {
	order := func(key service.Key) int {
		switch v := c[key]; {
		case v == nil:
			return 0
		case v.External:
			return 2
		}
		return 1
	}
	keys := slices.SortedFunc(maps.Keys(c), func(a, b service.Key) int {
		return cmp.Or(min(order(a), 1)-min(order(b), 1), s.compareAge(s.holder(a), s.holder(b)), order(a)-order(b),
			compareKeys(a, b))
	})
	failed, begin, last := failures{}, time.Now(), error(nil)
	halve(keys, failed, func(keys []service.Key) error {
		if last == nil {
			begin = time.Now()
		} else if time.Since(begin) > writeLimit {
			return fmt.Errorf("skipped after an earlier error of this round: %w", last)
		}
		var put []service.Service
		var remove []service.Key
		for _, key := range keys {
			if v := c[key]; v != nil {
				put = append(put, *v)
			} else {
				remove = append(remove, key)
			}
		}
		_, last = to.Change(ctx, service.Agent, put, remove)
		return last
	})
	return failed
}

func halve(all []service.Key, failed failures, do func([]service.Key) error) {
	if len(all) == 0 {
		return
	}
	switch err := do(all); {
	case err == nil:
	case len(all) == 1:
		failed[all[0]] = err
	default:
		halve(all[:len(all)/2], failed, do)
		halve(all[len(all)/2:], failed, do)
	}
}

// writeAll makes the agent's services equal to want, except for services that cannot be stored.
func (s *serviceSet) writeAll(ctx context.Context, to Services, want []service.Service) (failures, error) {
	if _, err := to.Apply(ctx, service.Agent, want); err == nil || ctx.Err() != nil {
		return nil, err
	}
	have, err := to.List(ctx)
	if err != nil {
		return nil, err
	}
	have = slices.DeleteFunc(have, func(v service.Service) bool { return v.Owner != service.Agent })
	c, difference := changes{}, service.Diff(have, want)
	for _, v := range difference.Delete {
		c[v.Key()] = nil
	}
	for _, v := range difference.Add {
		c[v.Key()] = &v
	}
	for _, u := range difference.Update {
		c[u.Want.Key()] = &u.Want
	}
	return s.write(ctx, to, c), nil
}

// isRefused reports whether an error is about one object's request. The object then waits and does not fail the round.
func isRefused(err error) bool {
	return errors.As(err, new(*datapath.ConflictError)) || errors.As(err, new(*objects.FullError)) ||
		errors.As(err, new(*health.PortError)) || errors.As(err, new(*AbsentError)) ||
		errors.As(err, new(*policy.LimitError))
}

func parts(err error) (all []error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			all = append(all, parts(e)...)
		}
	} else if err != nil {
		all = append(all, err)
	}
	return all
}

func split(err error) (refused, failed error) {
	for _, e := range parts(err) {
		if isRefused(e) {
			refused = errors.Join(refused, e)
		} else {
			failed = errors.Join(failed, e)
		}
	}
	return refused, failed
}

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
		switch n := a.services.holder(key); {
		case n == manifest.Name{} || !isRefused(err):
		case errors.As(err, new(*policy.LimitError)): // nodes have maps of the same size
			everywhere[n] = []string{err.Error()}
		default:
			why[n] = append(why[n], err.Error())
			slices.Sort(why[n])
		}
	}
	a.warnings.notServed(why, false, a.services)
	a.warnings.notServed(everywhere, true, a.services)
}

// attachAccess attaches the programs for clients other than pods, and notes which addresses have the node ports.
func (a *Agent) attachAccess(ctx context.Context) error {
	a.mu.Lock()
	addresses := a.addresses
	a.mu.Unlock()
	err := a.Access.Attach(ctx, addresses)
	ports, portsErr := a.Access.NodePorts(addresses)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.absent = ""
	if absent := new(AbsentError); errors.As(err, &absent) {
		a.absent = absent.Error()
		a.warnings.add(kube.Warning{Kind: kube.Nodes, Name: a.Node, Reason: "NotServed", Text: a.absent})
	}
	if portsErr == nil && a.services.setNodePorts(ports) {
		a.wake()
	}
	return errors.Join(err, portsErr)
}

// answerChecks starts the answers to health checks of services, and notes the ports that a process already uses.
func (a *Agent) answerChecks() error {
	a.mu.Lock()
	checked := slices.Collect(maps.Values(a.services.checked))
	a.mu.Unlock()
	err := a.Health.Apply(checked, func(s service.Service) (namespace, name string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		holder := a.services.holder(s.Key())
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
		n := a.services.holder(s.Key())
		if text := a.unanswered[s.HealthCheckPort]; text != "" && !slices.Contains(why[n], text) {
			why[n] = append(why[n], text)
		}
	}
	a.warnings.notServed(why, false, a.services)
	return err
}
