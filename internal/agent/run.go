// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath/policies"
	"mustang/internal/document"
	"mustang/internal/kube"
	"mustang/internal/service"
)

// New returns an agent that is not running.
func New(o Options) *Agent {
	if o.NamespaceQuota <= 0 {
		o.NamespaceQuota = defaultQuota
	}
	if o.Warnings == nil {
		o.Warnings = func() []string { return nil }
	}
	a := &Agent{
		Options: o, services: newServiceSet(o.Node, o.Room, o.NamespaceQuota), policies: newPolicySet(o.Node),
		nodes: &nodeSet{of: map[string]kube.Node{}, changed: make(chan struct{}, 1), unread: true},
		began: time.Now(), failed: map[service.Key]string{},
		unread: map[object]string{}, changed: make(chan struct{}, 1),
		balancers: balancers{make(chan struct{}, 1), make(chan struct{}, 1)}, paths: paths{moved: make(chan struct{}, 1)},
	}
	a.warnings = newWarnings(o.Log, func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.nodes.of)
	})
	a.podsWake = time.AfterFunc(longestRest, a.wake)
	a.podsWake.Stop()
	a.State.Refused = a.refused
	a.State.Installed = func() status.Installed {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.services.installed()
	}
	return a
}

// watch reads the cluster until the context ends. It calls synced once all objects have been read, except for pods of
// other nodes, which it reads once a policy may name them.
func (a *Agent) watch(ctx context.Context, synced func()) {
	others := kube.PodsElsewhere(a.Node)
	services := kube.Services
	if len(a.Pools) > 0 {
		services.Labels = "" // a Service that another proxy serves has an address, too
	}
	kinds := []kube.Kind{services, kube.EndpointSlices, kube.Nodes, kube.Namespaces, kube.PodsOn(a.Node),
		kube.NetworkPolicies, kube.ClusterNetworkPolicies, others}
	missing := len(kinds) - 1
	listed := func(k kube.Kind) {
		if k == others {
			a.mu.Lock()
			a.policies.elsewhere, a.services.all = true, true
			a.mu.Unlock()
			a.wake()
		} else if missing--; missing == 0 {
			synced()
		}
	}
	on := func(e kube.Event) {
		if e.Kind == services {
			e.Kind = kube.Services
		}
		a.on(e)
	}
	a.Cluster.Watch(ctx, kinds, kube.Calls{On: on, Listed: listed, Failing: a.failing,
		Later: map[kube.Kind]<-chan struct{}{others: a.policies.needed}})
}

// Run works until the context ends. It deletes nothing before it has read all objects that existed when it began. It
// fails if the datapath was removed.
func (a *Agent) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	synced := make(chan struct{})
	var others sync.WaitGroup
	defer func() { stop(nil); others.Wait() }()
	a.Log.Info("agent started", "version", a.Config.Version, "node", a.Node, "link", a.Config.Link, "routing",
		a.Config.Routing)
	for _, text := range a.Warnings() {
		a.Log.Warn(text)
	}
	others.Go(func() { a.warnings.post(ctx, a.Cluster, a.Node) })
	others.Go(func() { a.watch(ctx, func() { close(synced) }) })
	select {
	case <-ctx.Done():
		return nil
	case <-synced:
	}
	a.mu.Lock()
	a.synced = true
	if _, known := a.nodes.of[a.Node]; !known {
		a.Log.Warn("the Node of this name is not in the cluster yet: until then pods get no network", "node", a.Node)
	}
	a.mu.Unlock()
	if a.Nodes != nil {
		others.Go(func() { a.joinNodes(ctx) })
	}
	if len(a.Pools) > 0 {
		others.Go(func() { a.assign(ctx) })
	}
	if a.Paths.Every > 0 {
		others.Go(func() { a.checkPaths(ctx) })
	}
	announcing := len(a.Pools) == 0
	waits := sync.OnceFunc(func() { a.Log.Warn("addresses of load balancers wait for a round without an error") })
	idle := time.AfterFunc(idleAfter, debug.FreeOSMemory)
	defer idle.Stop()
	loop{
		changed: a.changed, every: resync, pause: pause, log: a.Log, failed: "not written", again: "written again",
		round: func(all bool) (bool, error) {
			if all {
				a.mu.Lock()
				a.services.all, a.policies.changed, a.policies.urgent, a.attach = true, true, true, true
				a.mu.Unlock()
				a.State.Queued()
			}
			begin := time.Now()
			all, refused, err := a.sync(ctx)
			a.State.Written(time.Since(begin), all, err)
			idle.Reset(idleAfter)
			switch {
			case announcing:
			case err == nil:
				announcing = true // earlier, packets would come that nothing serves
				others.Go(func() { a.announce(ctx) })
			default:
				waits()
			}
			if err = errors.Join(err, refused); err != nil && ctx.Err() == nil {
				if _, gone := a.Services.Generation(); errors.Is(gone, os.ErrNotExist) {
					stop(gone)
				}
			}
			return all, err
		},
	}.run(ctx)
	if gone := context.Cause(ctx); errors.Is(gone, os.ErrNotExist) {
		return gone
	}
	return nil
}

func (a *Agent) on(e kube.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.services.on(e)
	switch e.Kind {
	case kube.Services:
		a.State.ServiceChanged()
	case kube.EndpointSlices:
		a.State.EndpointsChanged(a.services.trigger(e, a.began))
	case kube.Nodes:
		err = errors.Join(err, a.onNode(e))
	}
	if e.Kind != kube.Services && e.Kind != kube.EndpointSlices {
		err = errors.Join(err, a.policies.on(e))
	}
	if e.Kind == kube.Namespaces && e.Name == "kube-system" && e.Object != nil {
		meta, _ := kube.MetaOf(e.Object)
		a.cluster = meta.UID
	}
	at := a.policies.identity(e)
	delete(a.unread, at)
	if err != nil {
		a.unread[at] = err.Error()
		meta, _ := kube.MetaOf(e.Object) // of an object that cannot be read
		a.warnings.add(kube.Warning{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name, Created: meta.Created,
			Reason: "NotRead", Text: err.Error(), Everywhere: true})
	}
	switch e.Kind {
	case kube.Services, kube.EndpointSlices, kube.Nodes:
		a.balancers.wake()
	}
	a.wake()
}

func (a *Agent) onNode(e kube.Event) error {
	if err := a.nodes.on(e); err != nil || e.Name != a.Node || e.Object == nil {
		return err
	}
	self := a.nodes.of[a.Node]
	if s := a.services; self.Zone != s.zone {
		s.zone, s.all = self.Zone, true
		s.cluster.SetZone(self.Zone)
	}
	a.State.SetLeaving(self.Leaving)
	if !slices.Equal(self.Addresses, a.addresses) {
		a.addresses, a.attach = self.Addresses, true
		select {
		case a.paths.moved <- struct{}{}:
		default:
		}
	}
	return nil
}

// sync writes what has changed, policies first, and reports whether it has compared all. refused is about single
// objects, which do not fail the round.
func (a *Agent) sync(ctx context.Context) (all bool, refused, err error) {
	err = a.readPods()
	due, waits := a.policiesDue(), false
	if due {
		err = errors.Join(err, a.readInForce(ctx))
	}
	a.mu.Lock()
	a.State.Begin()
	var rules policies.Set
	version, begun := a.policies.version, time.Now()
	if due {
		rules, due = a.policies.set()
		if waits = !due; waits {
			a.State.SetDegraded("policies", "the pods of other nodes are not read yet: changed policies wait")
		}
	}
	of, all := a.services.take()
	attach := a.attach
	a.attach = false
	a.mu.Unlock()
	resolve(of)
	a.mu.Lock()
	changes, unserved := a.services.merge(of, a.warnings)
	var services []service.Service
	if all {
		services, unserved = a.services.programmed()
	}
	a.mu.Unlock()
	if due {
		var failure error
		refused, failure = a.applyPolicies(ctx, rules, version)
		a.policiesTook(time.Since(begun))
		err = errors.Join(err, failure)
	}
	var failed failures
	if all {
		var failure error
		failed, failure = a.services.writeAll(ctx, a.Services, services)
		err = errors.Join(err, failure)
	} else {
		failed = a.services.write(ctx, a.Services, changes)
	}
	full, rest := failed.err()
	if all || full != "" {
		a.State.SetDegraded("services", full)
	}
	maps.Copy(unserved, failed)
	a.note(changes, unserved, all)
	if attach {
		rest = errors.Join(rest, a.attachAccess(ctx))
	}
	later, failure := split(errors.Join(rest, a.answerChecks()))
	return all && !waits, errors.Join(refused, later), errors.Join(err, failure)
}

// failing reports why the cluster cannot be read, also in an event; nil: it can be read.
func (a *Agent) failing(err error) {
	a.State.SetUnread(err)
	if err == nil {
		a.Log.Info("the cluster can be read again")
		return
	}
	a.Log.Error(err.Error())
	v := kube.Warning{Kind: kube.Nodes, Name: a.Node, Reason: "NotRead", Text: document.OneLine(err.Error())}
	select { // a full queue loses the event: the log has it
	case a.warnings.waiting <- waiting{v, time.Now()}:
	default:
	}
}
