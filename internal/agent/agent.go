// SPDX-License-Identifier: Apache-2.0

// Package agent keeps a node's datapath equal to the objects of a Kubernetes cluster.
package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/kube"
	"mustang/internal/nodenet"
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
	ByOwner(ctx context.Context) (map[service.Owner][]policy.Policy, []policy.Pod, error)
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
	Key      string // the public key of WireGuard that the agent publishes after Nodes; empty: none
	// Pools are the addresses for load balancers, and Announcer answers for them. Without pools neither is used.
	Pools     []netip.Prefix
	Announcer Announcer
	State     *status.Tracker
	Log       *slog.Logger
	// Config is part of what [Agent.Report] returns. Endpoints are the pods in the report; nil: the report omits pods.
	Config    status.Config
	Endpoints Endpoints
	Warnings  func() []string // returns warnings of a report that are not about objects; nil: none
	Paths     Paths
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
	balancers  balancers
	cluster    string // the UID of Namespace kube-system, which differs between clusters
	awaited    int    // pods that wait for policies to be written
	paths      paths
}

func (a *Agent) wake() {
	a.State.Queued()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Endpoints are the pods of a datapath.
type Endpoints interface {
	List(ctx context.Context) ([]datapath.Endpoint, error)
}

// Nodes joins the pods of nodes. *nodenet.Network implements it.
type Nodes interface {
	Apply(self nodenet.Node, others []nodenet.Node) error
	MTU(self nodenet.Node, others []nodenet.Node) (int, error)
	// Has returns the addresses that the host has and needs, except for pods.
	Has() (nodenet.Host, error)
	Inspect(self nodenet.Node, others []nodenet.Node) ([]nodenet.Way, []error, error)
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Attacher lets the node's container runtime attach pods, with addresses in ranges, and devices with an MTU in bytes.
type Attacher interface {
	Attach(ctx context.Context, ranges []netip.Prefix, mtu int) error
}

type nodeSet struct {
	of      map[string]kube.Node
	changed chan struct{} // capacity 1
	unread  bool          // pods would return something else than before
	joined  bool          // the routes to other nodes were made once
	// addresses are the addresses of all nodes; nil after a change, until the next look-up.
	addresses atomic.Pointer[map[netip.Addr]bool]
}

func (s *nodeSet) on(e kube.Event) error {
	had, ok := s.of[e.Name]
	if e.Object == nil {
		delete(s.of, e.Name)
	} else {
		now, err := kube.NodeOf(e.Object)
		if err != nil {
			return err
		}
		s.of[e.Name] = now
	}
	if ok != (e.Object != nil) || !reflect.DeepEqual(had, s.of[e.Name]) { // most events are a kubelet's reports
		s.unread = true
		s.addresses.Store(nil)
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	return nil
}

func (s *nodeSet) split(name string) (self nodenet.Node, others []nodenet.Node, available, known bool) {
	for at, n := range s.of {
		node := nodenet.Node{Name: at, Addresses: n.Addresses, Ranges: n.PodCIDRs, Created: n.Created, UID: n.UID,
			Key: n.Key}
		if at == name {
			self, available, known = node, n.Available, true
		} else {
			others = append(others, node)
		}
	}
	return self, others, available, known
}

// After an error a loop compares all again: after firstRetry, and after each further error twice as late.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

type loop struct {
	changed, disturbed <-chan struct{}
	every, pause       time.Duration // between rounds that compare all, and between any
	patient            bool          // after an error, changes wait for the retry
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
		changed := l.changed
		if due && l.patient {
			changed = nil
		}
		select {
		case <-ctx.Done():
		case <-next.C:
			all, due = true, false
		case <-changed:
		case <-l.disturbed:
		}
	}
}
