// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/service"
)

// Limits of a Service of a cluster: frontends, rows of endpoints at all frontends, and endpoints and ports of slices.
const (
	maxFrontends = 1000
	maxRows      = 1 << 18
	maxListed    = 1 << 18
)

// checkSize returns an error if a Service has too many frontends or rows: each frontend has rows of its own.
func (k *kubeService) checkSize(frontends int, o offers) error {
	addresses, rows := "1 address", 0
	if frontends != 1 {
		addresses = fmt.Sprintf("%d addresses", frontends)
	}
	if n := frontends * len(k.Spec.Ports); n > maxFrontends {
		return fmt.Errorf("%d ports at %s are %d frontends: a Service has at most %d", len(k.Spec.Ports), addresses, n,
			maxFrontends)
	}
	for _, p := range k.Spec.Ports {
		n := o.count(p)
		rows += max(n, frontends*min(n, service.MaxBackends))
	}
	if rows > maxRows {
		return fmt.Errorf("its endpoints at %s have %d rows: a Service has at most %d", addresses, rows, maxRows)
	}
	return nil
}

type backend struct {
	service.Backend
	*hints
}

// offers are the ports of a Service's slices, by the Service's ports.
type offers map[portName][]offer

// portName links a port of a Service to the ports of its slices.
type portName struct {
	name     string
	protocol protocol
}

type offer struct {
	port uint16
	*endpointSlice
}

func (s *set) offers(k *kubeService, of []*endpointSlice) offers {
	out := offers{}
	for _, p := range k.Spec.Ports {
		out[portName{p.Name, p.Protocol}] = nil
	}
	for _, slice := range of {
		if !slice.hasAddresses() {
			s.note("%s: left out: addressType %q", slice.origin(), slice.AddressType)
			continue
		}
		for _, why := range slice.bad {
			s.refuse("%s: %s", slice.origin(), why)
		}
		for i, port := range slice.Ports {
			at := portName{port.Name, port.Protocol}
			had, desired := out[at]
			switch {
			case desired && port.Port == nil:
				s.note("%s: ports[%d] left out: it stands for all ports", slice.origin(), i)
			case desired:
				out[at] = append(had, offer{*port.Port, slice})
			}
		}
	}
	return out
}

func (o offers) count(p servicePort) (n int) {
	for _, offer := range o[portName{p.Name, p.Protocol}] {
		n += len(offer.Endpoints)
	}
	return n
}

func (o offers) backends(k *kubeService, p servicePort) (out []backend) {
	n := o.count(p)
	out = make([]backend, 0, n)
	places := make(map[netip.AddrPort]int, n)
	for _, offer := range o[portName{p.Name, p.Protocol}] {
		for _, e := range offer.Endpoints {
			at := netip.AddrPortFrom(e.addr, offer.port)
			b := backend{service.Backend{Addr: at, State: k.stateOf(e), Local: e.local}, e.hints}
			if n, ok := places[at]; !ok {
				places[at] = len(out)
				out = append(out, b)
			} else if b.State < out[n].State {
				out[n] = b
			}
		}
	}
	return out
}

func (s *set) remark(k *kubeService, of []*endpointSlice) {
	all, ready, has := 0, false, map[string]bool{}
	for _, slice := range of {
		all += len(slice.Endpoints)
		active := func(e endpoint) bool { return k.stateOf(e) == service.Active }
		ready = ready || slices.ContainsFunc(slice.Endpoints, active)
		for _, port := range slice.Ports {
			has[port.Name] = true
		}
	}
	if all == 0 {
		s.Remarks = append(s.Remarks, "no endpoints")
	} else if !ready {
		s.Remarks = append(s.Remarks, fmt.Sprintf("0 of %d endpoints are ready", all))
	}
	for i, p := range k.Spec.Ports {
		if ready && !has[p.Name] && len(s.Remarks) < maxTold {
			s.Remarks = append(s.Remarks, fmt.Sprintf("spec.ports[%d]: no endpoint has the port %s", i,
				cmp.Or(string(p.TargetPort), fmt.Sprint(p.Port))))
		}
	}
}

func (k *kubeService) stateOf(e endpoint) service.State {
	if k.Spec.PublishNotReadyAddresses {
		return service.Active
	}
	return e.state
}

// nearby are the backends of a port, and of each kind of frontend: a Service can have many frontends and backends.
type nearby struct {
	all    []backend
	shared map[kind][]service.Backend
}

type kind struct {
	v4     bool
	policy service.Policy
	port   uint16
}

// of returns the backends of a frontend. In a cluster, it leaves out backends that the frontend cannot have.
func (n nearby) of(s *set, k *kubeService, v service.Service, f frontend) []service.Backend {
	if !s.cluster {
		return s.near(n.all, f)
	}
	at := kind{f.addr.Is4(), f.policy, v.Frontend.Port()}
	backends, ok := n.shared[at]
	if !ok {
		backends = s.limitBackends(k, v, s.near(n.all, f))
		n.shared[at] = backends
	}
	isFrontend := func(b service.Backend) bool { return b.Addr == v.Frontend }
	if i := slices.IndexFunc(backends, isFrontend); i >= 0 {
		s.refuse("%s: left out: %v", k.origin, v.CheckBackend(backends[i]))
		backends = slices.DeleteFunc(slices.Clone(backends), isFrontend)
	}
	return backends
}

// limitBackends drops the backends that frontends of a kind cannot have, and of too many the least important. It sorts.
func (s *set) limitBackends(k *kubeService, v service.Service, all []service.Backend) []service.Backend {
	all = slices.DeleteFunc(all, func(b service.Backend) bool {
		err := v.CheckBackend(b)
		if err == nil && v.Protocol == service.UDP {
			err = s.Taken.checkTunnel(b.Addr)
		}
		if err == nil || b.Addr == v.Frontend { // not another frontend's address
			return false
		}
		s.refuse("%s: left out: %v", k.origin, err)
		return true
	})
	slices.SortFunc(all, service.Backend.Compare)
	if len(all) > service.MaxBackends {
		s.refuse("%s: it has more than %d endpoints: the others get no connection; active endpoints and endpoints of this "+
			"node come first", k.origin, service.MaxBackends)
		all = all[:service.MaxBackends]
	}
	return slices.Clone(all) // without spare capacity
}

// checkTunnel returns an error for a UDP backend at the tunnel's port that is not a pod.
func (t Taken) checkTunnel(at netip.AddrPort) error {
	if t.Tunnel == 0 || at.Port() != t.Tunnel {
		return nil
	}
	node := t.Hosts[at.Addr()] != "" || t.Nodes[at.Addr()] != ""
	for r := range t.Pods { // the first two addresses are the node's, in the tunnel and among its pods
		if first := r.Masked().Addr(); r.Contains(at.Addr()) && !node && at.Addr() != first && at.Addr() != first.Next() {
			return nil
		}
	}
	return fmt.Errorf("backend %s: UDP port %d is reserved for VXLAN: only pods can be backends there", at, t.Tunnel)
}

// near returns the backends of the family. Like in kube-proxy, topology hints apply if all active backends have them,
// and some name this node or else this zone. Policy local ignores hints.
func (s *set) near(all []backend, f frontend) (out []service.Backend) {
	all = slices.DeleteFunc(slices.Clone(all), func(b backend) bool { return b.Addr.Addr().Is4() != f.addr.Is4() })
	if f.policy == service.Cluster {
		if kept, ok := hinted(all, s.Node, func(h *hints) []hint { return h.ForNodes }); ok {
			all = kept
		} else if kept, ok := hinted(all, s.Zone, func(h *hints) []hint { return h.ForZones }); ok {
			all = kept
		}
	}
	out = make([]service.Backend, len(all))
	for i, b := range all {
		out[i] = b.Backend
	}
	return out
}

// hinted returns the backends without the active ones whose hints lack the name; ok is false if the hints do not apply.
func hinted(all []backend, name string, names func(*hints) []hint) (kept []backend, ok bool) {
	for _, b := range all {
		switch {
		case b.State != service.Active:
			kept = append(kept, b)
		case name == "" || b.hints == nil || len(names(b.hints)) == 0:
			return nil, false
		case slices.Contains(names(b.hints), hint{name}):
			kept, ok = append(kept, b), true
		}
	}
	return kept, ok
}
