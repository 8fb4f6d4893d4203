// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"mustang/internal/kube"
	"mustang/internal/service/manifest"
)

// balancerClass is the spec.loadBalancerClass of Services that get addresses, as those without a class do. One agent at
// a time assigns addresses: the one that holds a Lease of the name balancerLease.
const (
	balancerClass = "mustang"
	balancerLease = "mustang-lb"
)

// The shortest time between rounds of addresses, and the interval of full comparisons.
const (
	balancePause  = time.Second
	balanceResync = time.Minute
)

const (
	competitors = 3  // nodes that compete for the Lease
	maxUnset    = 10 // errors that end a round
)

// Announcer answers for addresses on the networks of a node. *announce.Announcer implements it.
type Announcer interface {
	// Apply makes the devices that have an address of the node answer for the owned addresses, and only for them, except
	// for those with conflicts. Announcers with the same text for the cluster ignore each other.
	Apply(cluster string, node, owned []netip.Addr) (conflicts map[netip.Addr]string, err error)
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// balancers have a channel of capacity 1 for each loop that depends on Services and Nodes.
type balancers struct{ assign, announce chan struct{} }

func (b balancers) wake() {
	for _, to := range []chan struct{}{b.assign, b.announce} {
		select {
		case to <- struct{}{}:
		default:
		}
	}
}

// announce answers for the addresses that this node owns until the context ends.
func (a *Agent) announce(ctx context.Context) {
	disturbed, err := a.Announcer.Watch(ctx)
	if err != nil {
		a.Log.Warn("changes of devices are not watched: load-balancer addresses follow once a minute", "error", err)
	}
	loop{
		changed: a.balancers.announce, disturbed: disturbed, every: balanceResync, pause: balancePause, log: a.Log,
		failed: "addresses of load balancers not announced", again: "addresses of load balancers announced again",
		round: func(bool) (bool, error) {
			a.mu.Lock()
			cluster, self, p := a.cluster, slices.Clone(a.addresses), a.pooled(nil)
			a.mu.Unlock()
			conflicts, err := a.Announcer.Apply(cluster, self, p.owned(a.Node))
			why := map[manifest.Name][]string{}
			for _, addr := range slices.SortedFunc(maps.Keys(conflicts), netip.Addr.Compare) {
				text := fmt.Sprintf("load-balancer address %v: %s", addr, conflicts[addr])
				why[p.holders[addr]] = append(why[p.holders[addr]], text)
				err = cmp.Or(err, errors.New(text)) // an event has each
			}
			a.mu.Lock()
			a.warnings.notServed(why, false, a.services)
			a.mu.Unlock()
			return true, err
		},
	}.run(ctx)
}

// assign assigns addresses whenever this agent leads, until the context ends.
func (a *Agent) assign(ctx context.Context) {
	last := ""
	work := func(ctx context.Context) {
		a.Log.Info("this agent assigns the addresses of load balancers")
		given := map[manifest.Name]kube.Ingress{}
		loop{
			changed: a.balancers.assign, patient: true, every: balanceResync, pause: balancePause, log: a.Log,
			failed: "addresses of load balancers not assigned", again: "addresses of load balancers assigned again",
			round: func(all bool) (bool, error) {
				if all {
					clear(given)
				}
				return true, a.assignRound(ctx, given)
			},
		}.run(ctx)
	}
	a.Cluster.Lead(ctx, kube.Election{Lease: balancerLease, Identity: a.Node, Competes: a.competes, Work: work,
		Failing: func(err error) {
			if now := err.Error(); now != last {
				last = now
				a.Log.Error("election for load-balancer addresses failed", "error", err)
			}
		}})
}

// competes reports whether this node is one of those with the highest scores among the nodes that may own addresses.
func (a *Agent) competes() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	all, better, of := able(a.nodes.of), 0, hash(balancerLease)
	self, found := all[a.Node]
	for _, h := range all {
		if score(h, of) > score(self, of) {
			better++
		}
	}
	return better < competitors && found
}

// assignRound sets the addresses of Services. given has the addresses that it has set, until it has read them. It also
// has the first addresses of a Service that the API server refused: the next full comparison tries them again.
func (a *Agent) assignRound(ctx context.Context, given map[manifest.Name]kube.Ingress) (first error) {
	a.mu.Lock()
	changes, why := a.pooled(given).assign()
	a.warnings.notServed(why, true, a.services)
	a.mu.Unlock()
	failed, refused := 0, map[manifest.Name][]string{}
	for _, c := range changes {
		if ctx.Err() != nil || failed == maxUnset {
			break
		}
		set, err := a.Cluster.SetIngress(ctx, c)
		n := manifest.Name{Namespace: c.Namespace, Name: c.Name}
		if set || kube.Refused(err) && len(c.Had) == 0 { // else the status would keep what others get
			given[n] = c
		}
		if kube.Refused(err) {
			refused[n] = []string{err.Error()}
		} else if err != nil {
			failed++
			first = cmp.Or(first, err)
		}
	}
	a.mu.Lock()
	a.warnings.notServed(refused, true, a.services)
	a.mu.Unlock()
	return first
}

// pools are the addresses for load balancers, and their users.
type pools struct {
	prefixes []netip.Prefix
	services []manifest.LoadBalancer      // the oldest first
	able     map[string]uint64            // the nodes that may own addresses, with hashes of their names
	holders  map[netip.Addr]manifest.Name // the oldest Service with an address in its status
	reserved map[netip.Addr]bool          // addresses of nodes, cluster IPs and the like
	pods     []netip.Prefix               // ranges of pods that overlap a pool
	next     map[netip.Prefix]netip.Addr  // all addresses of a pool before this one are taken
}

// pooled returns the addresses and their users. If a Service's status is still that before it was given addresses, it
// has these addresses; otherwise given no longer has the Service. The caller has the lock.
func (a *Agent) pooled(given map[manifest.Name]kube.Ingress) *pools {
	p := &pools{prefixes: a.Pools, services: a.services.cluster.LoadBalancers(), able: able(a.nodes.of),
		holders: map[netip.Addr]manifest.Name{}, reserved: map[netip.Addr]bool{}, next: map[netip.Prefix]netip.Addr{}}
	reserve := func(all []netip.Addr) {
		for _, addr := range all {
			p.reserved[addr] = true
		}
	}
	reserve(a.Cluster.Addresses())
	reserve(a.services.cluster.ClusterIPs())
	for _, n := range a.nodes.of {
		reserve(n.Addresses)
		reserve(n.External)
		p.pods = append(p.pods, slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(r netip.Prefix) bool {
			return !slices.ContainsFunc(a.Pools, r.Overlaps)
		})...)
	}
	for i := range p.services {
		s := &p.services[i]
		if g, ok := given[s.Name]; ok && s.UID == g.UID && slices.Equal(s.Has, g.Had) {
			s.Has = g.Want
		} else {
			delete(given, s.Name)
		}
		for _, addr := range s.Has {
			if _, held := p.holders[addr]; !held {
				p.holders[addr] = s.Name
			}
		}
	}
	return p
}

func (p *pools) contains(addr netip.Addr) bool {
	return slices.ContainsFunc(p.prefixes, func(r netip.Prefix) bool { return r.Contains(addr) })
}

// reservedFor returns why an address of a pool cannot be assigned; empty if it can. Routers have the first address of
// an IPv6 subnet (RFC 4291, section 2.6.1). Subnets of IPv4 usually begin and end at these bytes.
func (p *pools) reservedFor(addr netip.Addr) string {
	first := func(r netip.Prefix) bool { return addr == r.Addr() && addr.Is6() && !r.IsSingleIP() }
	last := addr.As16()[15]
	switch {
	case addr.Is4() && (last == 0 || last == 255), slices.ContainsFunc(p.prefixes, first):
		return "the first or last address of a subnet"
	case p.reserved[addr], slices.ContainsFunc(p.pods, func(r netip.Prefix) bool { return r.Contains(addr) }):
		return "an address of a node, a pod or a cluster IP"
	}
	return ""
}

// ours reports whether class and labels leave a Service's addresses to Mustang.
func ours(s manifest.LoadBalancer) bool {
	return !s.Left && (s.Class == "" || s.Class == balancerClass)
}

// manages reports whether a Service's addresses are assigned here: another controller's are outside the pools.
func (p *pools) manages(s manifest.LoadBalancer) bool {
	other := func(addr netip.Addr) bool { return !p.contains(addr) }
	return !slices.ContainsFunc(s.Has, other) && ours(s)
}

// keeps reports whether an address of a Service's status stays there.
func (p *pools) keeps(s manifest.LoadBalancer, addr netip.Addr) bool {
	return p.holders[addr] == s.Name && p.contains(addr)
}

// assign returns the Services whose status has to change, and why others get no address.
func (p *pools) assign() (changes []kube.Ingress, why map[manifest.Name][]string) {
	why = map[manifest.Name][]string{}
	for _, s := range p.services {
		if !p.manages(s) {
			continue
		}
		to := kube.Ingress{Namespace: s.Name.Namespace, Name: s.Name.Name, UID: s.UID, Had: s.Has}
		if s.Active {
			for _, is6 := range s.IPv6 {
				addr, err := p.choose(s, is6)
				if err != nil && !slices.Contains(why[s.Name], err.Error()) {
					why[s.Name] = append(why[s.Name], err.Error())
				}
				if addr.IsValid() {
					to.Want = append(to.Want, addr)
					p.holders[addr] = s.Name
				}
			}
		}
		if !slices.Equal(s.Has, to.Want) {
			changes = append(changes, to)
		}
	}
	return changes, why
}

// choose returns the address of a Service in one family: the one that it wants, that it has, or the lowest free one.
func (p *pools) choose(s manifest.LoadBalancer, is6 bool) (addr netip.Addr, err error) {
	for _, has := range s.Has {
		if has.Is6() == is6 && p.keeps(s, has) {
			addr = has
		}
	}
	wanted, parseErr := netip.ParseAddr(s.Wants)
	holder, held := p.holders[wanted]
	switch {
	case s.Wants == "" || parseErr == nil && (wanted.Is6() != is6 || wanted == addr):
	case parseErr != nil:
		return addr, fmt.Errorf("spec.loadBalancerIP: invalid IP address %q", s.Wants)
	case !p.contains(wanted):
		return addr, fmt.Errorf("spec.loadBalancerIP: %v is not in a pool", wanted)
	case p.reservedFor(wanted) != "":
		return addr, fmt.Errorf("spec.loadBalancerIP: %v is %s", wanted, p.reservedFor(wanted))
	case held && holder != s.Name:
		return addr, fmt.Errorf("spec.loadBalancerIP: Service %s already has %v", holder, wanted)
	default:
		return wanted, nil
	}
	if addr.IsValid() {
		return addr, nil
	}
	return p.lowest(is6)
}

func (p *pools) lowest(is6 bool) (netip.Addr, error) {
	var full []string
	for _, r := range p.prefixes {
		if r.Addr().Is6() != is6 {
			continue
		}
		addr, ok := p.next[r]
		if !ok {
			addr = r.Addr()
		}
		for ; r.Contains(addr); addr = addr.Next() {
			if _, held := p.holders[addr]; !held && p.reservedFor(addr) == "" {
				p.next[r] = addr.Next()
				return addr, nil
			}
		}
		p.next[r] = addr
		full = append(full, fmt.Sprintf("pool %v is full", r))
	}
	if full == nil {
		return netip.Addr{}, fmt.Errorf("no pool of %s addresses", map[bool]string{false: "IPv4", true: "IPv6"}[is6])
	}
	return netip.Addr{}, errors.New(strings.Join(full, "; "))
}

// owned returns the addresses for which a node answers.
func (p *pools) owned(node string) (all []netip.Addr) {
	for _, s := range p.services {
		if !s.Active || !ours(s) {
			continue
		}
		for _, addr := range s.Has {
			if p.keeps(s, addr) && owner(addr, p.able, s.Nodes) == node {
				all = append(all, addr)
			}
		}
	}
	return all
}

// able returns the nodes that may own addresses. Without a Ready node these are all: pods may run without kubelets.
func able(of map[string]kube.Node) map[string]uint64 {
	ready, others := map[string]uint64{}, map[string]uint64{}
	for name, n := range of {
		switch {
		case n.Leaving, n.Excluded:
		case n.Ready:
			ready[name] = hash(name)
		default:
			others[name] = hash(name)
		}
	}
	if len(ready) == 0 {
		return others
	}
	return ready
}

// owner returns the node of all candidates, by the hashes of their names, that has the highest score; empty if there is
// none. Each agent computes the same, and only addresses of a node move when it goes (rendezvous hashing, Thaler and
// Ravishankar 1998).
func owner(addr netip.Addr, able map[string]uint64, serving map[string]bool) (name string) {
	of, best := hash(addr.String()), uint64(0)
	for n, h := range able {
		if serving != nil && !serving[n] {
			continue
		}
		if v := score(h, of); name == "" || cmp.Or(cmp.Compare(v, best), cmp.Compare(n, name)) > 0 {
			name, best = n, v
		}
	}
	return name
}

// hash is FNV-1a.
func hash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// score mixes two hashes as MurmurHash3 does: names and addresses differ only in few bits.
func score(node, of uint64) uint64 {
	v := node ^ of
	v = (v ^ v>>33) * 0xff51afd7ed558ccd
	v = (v ^ v>>33) * 0xc4ceb9fe1a85ec53
	return v ^ v>>33
}
