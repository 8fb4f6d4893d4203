// SPDX-License-Identifier: Apache-2.0

// Package agent keeps the services and policies of a node's datapath equal to a Kubernetes cluster's.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/service/health"
)

// pause is the shortest time between writes, resync the interval of full comparisons.
const (
	pause  = 10 * time.Millisecond
	resync = 5 * time.Minute
)

const idleAfter = 5 * time.Second // the time without a write after which memory is returned to the system

// Services are the services of a datapath.
type Services interface {
	List(ctx context.Context) ([]service.Service, error)
	Apply(ctx context.Context, owner service.Owner, want []service.Service) (datapath.Result, error)
	Change(ctx context.Context, owner service.Owner, put []service.Service, remove []service.Key) (datapath.Result, error)
	// Generation returns an error that matches os.ErrNotExist if the datapath was removed since it was opened.
	Generation() (uint32, error)
}

// Policies are the policies of a datapath.
type Policies interface {
	List() ([]policies.Listed, error)
	ByOwner(ctx context.Context) (map[service.Owner][]policy.Policy, error)
	Apply(ctx context.Context, owner service.Owner, want policies.Set) (policies.Result, error)
}

// Access lets the node's own processes, and clients outside at the node's addresses, reach services. See [Host].
type Access interface {
	Attach(ctx context.Context, addresses []netip.Addr) error
	// NodePorts returns the node's addresses with node ports, if its Node object names some; nil: all addresses.
	NodePorts(addresses []netip.Addr) ([]netip.Addr, error)
}

// Health answers the health checks of load balancers. *health.Server implements it.
type Health interface {
	Apply(services []service.Service, name health.Name) error
}

// Options configure an agent.
type Options struct {
	Node     string // the name of this node
	Cluster  *kube.Client
	Services Services
	// Room is the number of rows for services; 0: no limit. A namespace may use one part in NamespaceQuota; 0: an eighth.
	Room           rows.Counts
	NamespaceQuota int
	Policies       Policies
	// Access is applied after the services. Health serves the health checks.
	Access Access
	Health Health
	// Nodes joins the pods of all nodes; nil if another program does. Attacher starts after Nodes; it may be nil.
	Nodes    Nodes
	Attacher Attacher
	State    *status.Tracker
	Log      *slog.Logger
	// Config is part of what [Agent.Report] returns. Endpoints are the pods in the report; nil: the report omits pods.
	Config    status.Config
	Endpoints Endpoints
	Warnings  func() []string // returns warnings of a report that are not about objects; nil: none
}

// Agent is a node's agent. It stores only the cluster's objects: the datapath stores what the agent has written.
type Agent struct {
	Options

	mu         sync.Mutex
	services   *serviceSet
	policies   *policySet
	nodes      *nodeSet
	warnings   *warnings
	joining    atomic.Bool
	began      time.Time
	synced     bool                   // all objects that existed at the start have been read
	failed     map[service.Key]string // why services were not written
	unread     map[object]string      // why objects were not read
	over       map[string]overQuota   // by namespace
	podsDue    time.Time              // when to write policies if only Pods have changed
	podsWake   *time.Timer            // fires at podsDue
	unanswered map[uint16]string      // why health checks at ports fail
	absent     string                 // set if no device has an address of the node
	addresses  []netip.Addr           // of this node
	attach     bool                   // the next round attaches the programs again
	changed    chan struct{}          // capacity 1
	awaited    int                    // pods that wait for policies to be written
}

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
		nodes: &nodeSet{of: map[string]kube.Node{}, changed: make(chan struct{}, 1)}, warnings: newWarnings(o.Log),
		began: time.Now(), failed: map[service.Key]string{},
		unread: map[object]string{}, changed: make(chan struct{}, 1),
	}
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

var (
	ofPolicies = []kube.Kind{kube.Nodes, kube.Namespaces, kube.Pods, kube.NetworkPolicies, kube.ClusterNetworkPolicies}
	watched    = append([]kube.Kind{kube.Services, kube.EndpointSlices}, ofPolicies...)
)

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
	others.Go(func() {
		a.Cluster.Watch(ctx, watched, kube.Calls{On: a.on, Synced: func() { close(synced) }, Failing: a.failing})
	})
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

func (a *Agent) wake() {
	a.State.Queued()
	select {
	case a.changed <- struct{}{}:
	default:
	}
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
	if slices.Contains(ofPolicies, e.Kind) {
		err = errors.Join(err, a.policies.on(e))
	}
	at := object{e.Kind.Resource, e.Namespace, e.Name}
	delete(a.unread, at)
	if err != nil {
		a.unread[at] = err.Error()
		a.warnings.add(kube.Warning{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name, Reason: "NotRead", Text: err.Error(),
			Everywhere: true})
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
	}
	return nil
}

// sync writes what has changed, policies first, and reports whether it has compared all. refused is about single
// objects, which do not fail the round.
func (a *Agent) sync(ctx context.Context) (all bool, refused, err error) {
	err = a.readPods()
	due := a.policiesDue()
	if due {
		err = errors.Join(err, a.readInForce(ctx))
	}
	a.mu.Lock()
	a.State.Begin()
	var rules policies.Set
	version, begun := a.policies.version, time.Now()
	if due {
		rules = a.policies.set()
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
	waits, failure := split(errors.Join(rest, a.answerChecks()))
	return all, errors.Join(refused, waits), errors.Join(err, failure)
}

// After an error a loop compares all again: after firstRetry, and after each further error twice as late.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

type loop struct {
	changed, disturbed <-chan struct{}
	every, pause       time.Duration // between rounds that compare all, and between any
	// round writes what has changed, or compares all, and reports whether it has compared all.
	round func(all bool) (bool, error)
	log   *slog.Logger
	// failed is the log message of an error, again the message once all has been compared without an error.
	failed, again string
}

func (l loop) run(ctx context.Context) {
	next := time.NewTimer(l.every)
	defer next.Stop()
	logged, retry, due := "", firstRetry, false // due: all is compared again after an error
	for all := true; ctx.Err() == nil; {
		compared, err := l.round(all)
		switch {
		case err == nil && compared:
			if logged != "" {
				l.log.Info(l.again)
			}
			logged, retry, due = "", firstRetry, false
			next.Reset(l.every)
		case err != nil && !due && ctx.Err() == nil: // changes that fail too do not put it off, nor fill the log
			if now := err.Error(); now != logged {
				logged = now
				l.log.Error(l.failed, "error", err, "again", retry)
			}
			due = true
			next.Reset(retry)
			retry = min(2*retry, lastRetry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(l.pause):
		}
		all = false
		select {
		case <-ctx.Done():
		case <-next.C:
			all, due = true, false
		case <-l.changed:
		case <-l.disturbed:
		}
	}
}
