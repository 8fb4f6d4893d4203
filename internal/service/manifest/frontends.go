// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"mustang/internal/service"
)

const defaultAffinity = 3 * time.Hour // as in Kubernetes

type frontend struct {
	field  string // that has it
	addr   netip.Addr
	policy service.Policy // of its clients

	atNodePort         bool // its port is the node port, at this address or, with nodePort, at all of the node
	nodePort, external bool
	ranged             bool // loadBalancerSourceRanges apply
	ranges             []netip.Prefix
}

func (k *kubeService) skip() string {
	switch {
	case k.Spec.Type == "ExternalName":
		return "its type is ExternalName"
	case k.left != "":
		return k.left
	case k.Spec.ClusterIP == "None":
		return "headless: no cluster IP to serve"
	}
	return ""
}

func (s *set) joinOne(k *kubeService, of []*endpointSlice) error {
	frontends, err := s.frontends(k)
	if err != nil {
		return fmt.Errorf("%s: %w", k.origin, err)
	}
	if len(frontends) == 0 {
		s.note("%s: left out: its address is not set yet", k.origin)
	}
	if frontends = s.leave(k, frontends); len(frontends) == 0 {
		return nil
	}
	if s.Node == "" && slices.ContainsFunc(frontends, func(f frontend) bool { return f.policy == service.Local }) {
		s.note("%s: a traffic policy is Local, and without the name of this node no backend is on it", k.origin)
	}
	offers := s.offers(k, of)
	if s.cluster {
		if err := k.checkSize(len(frontends), offers); err != nil {
			return fmt.Errorf("%s: %w", k.origin, err)
		}
	}
	for i, p := range k.Spec.Ports {
		near := nearby{offers.backends(k, p), map[kind][]service.Backend{}}
		seen := map[netip.AddrPort]bool{}
		for _, f := range frontends {
			v, ok := k.service(p, f)
			if !ok || seen[v.Frontend] { // an external address that the load balancer has given too
				continue
			}
			seen[v.Frontend] = true
			v.Backends = near.of(s, k, v, f)
			err := s.free(k, f)
			if err == nil {
				err = s.put(fmt.Sprintf("%s: spec.ports[%d], %s", k.origin, i, f.field), v)
			}
			if err != nil && (!s.cluster || !f.external) {
				return err
			}
			if err != nil {
				s.refuse("%v", err)
			}
		}
	}
	return nil
}

func (k *kubeService) service(p servicePort, f frontend) (v service.Service, ok bool) {
	v = service.Service{Frontend: netip.AddrPortFrom(f.addr, p.Port), NodePort: f.nodePort,
		Protocol: cmp.Or(service.Protocol(p.Protocol), service.TCP), External: f.external, SourceRanges: f.ranges,
		InternalPolicy: f.policy, ExternalPolicy: f.policy} // a cluster IP has one policy for all clients
	if k.Spec.SessionAffinity {
		seconds := time.Duration(k.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds)
		v.Affinity = cmp.Or(seconds*time.Second, defaultAffinity)
	}
	if f.nodePort || f.external {
		v.InternalPolicy = service.Cluster
		if f.policy == service.Local {
			v.HealthCheckPort = k.Spec.HealthCheckNodePort
		}
	}
	if f.atNodePort {
		v.Frontend = netip.AddrPortFrom(f.addr, p.NodePort)
	}
	noSocket := f.addr.IsLoopback() && v.Protocol == service.SCTP // which no socket translates
	return v, !f.atNodePort || p.NodePort != 0 && !noSocket
}

// leave leaves a load balancer's addresses to the machines that have them, as with the servicelb of k3s.
func (s *set) leave(k *kubeService, all []frontend) []frontend {
	return slices.DeleteFunc(all, func(f frontend) bool {
		of := s.ofMachine(f.addr)
		if of == "" || !f.ranged {
			return false
		}
		s.note("%s: %s left out: %v is an address of %s, which answers there", k.origin, f.field, f.addr, of)
		return true
	})
}

func (s *set) ofMachine(addr netip.Addr) string {
	if of := s.Taken.Nodes[addr]; of != "" || !slices.Contains(s.apiServers, addr) {
		return of
	}
	return "the API server"
}

// free returns an error if a frontend is an external address that another Service, a machine or a pod has: the Service
// would take its traffic.
func (s *set) free(k *kubeService, f frontend) error {
	if !f.external || f.atNodePort {
		return nil
	}
	of := s.ofMachine(f.addr)
	if of == "" && !f.ranged {
		of = s.Taken.Hosts[f.addr]
	}
	if of == "" && s.clusterIPs[f.addr] && !f.ranged { // also at ports that the other has not
		of = "another Service"
	}
	if of != "" {
		return fmt.Errorf("%s: %s: external IP %v is an address of %s", k.origin, f.field, f.addr, of)
	}
	in := func(r netip.Prefix) bool { return r.Contains(f.addr) }
	if at := slices.IndexFunc(s.Taken.Pools, in); at >= 0 && !f.ranged {
		return fmt.Errorf("%s: %s: external IP %v is within the pool %v of load balancers", k.origin, f.field, f.addr,
			s.Taken.Pools[at])
	}
	for bits := f.addr.BitLen(); bits >= 0; bits-- {
		r, _ := f.addr.Prefix(bits)
		if node, ok := s.Taken.Pods[r]; ok {
			return fmt.Errorf("%s: %s: external IP %v is within the pods' range %v of node %s", k.origin, f.field,
				f.addr, r, node)
		}
	}
	return nil
}

func (s *set) frontends(k *kubeService) (out []frontend, err error) {
	external := service.Policy(k.Spec.ExternalTrafficPolicy)
	add := func(field, text string, f frontend) {
		addr, parseErr := netip.ParseAddr(text)
		if parseErr != nil && s.cluster && f.external {
			s.refuse("%s: %s: invalid IP address %q", k.origin, field, text)
			return
		}
		if parseErr != nil {
			err = cmp.Or(err, fmt.Errorf("%s: invalid IP address %q", field, text))
		}
		f.field, f.addr = field, addr
		out = append(out, f)
	}
	for i, ip := range k.clusterIPs() {
		add(fmt.Sprintf("spec.clusterIPs[%d]", i), ip, frontend{policy: service.Policy(k.Spec.InternalTrafficPolicy)})
	}
	families := k.Spec.IPFamilies
	for _, f := range out {
		if len(k.Spec.IPFamilies) == 0 {
			families = append(families, familyOf(f.addr))
		}
	}
	for i, in := range k.Status.LoadBalancer.Ingress {
		if k.Spec.Type == "LoadBalancer" && in.IP != "" && in.IPMode != "Proxy" { // a proxy must see the traffic itself
			add(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP, frontend{policy: external, external: true,
				ranged: true})
		}
	}
	for i, ip := range k.Spec.ExternalIPs {
		add(fmt.Sprintf("spec.externalIPs[%d]", i), ip, frontend{policy: external, external: true})
	}
	if k.Spec.Type == "NodePort" || k.Spec.Type == "LoadBalancer" {
		for _, family := range families {
			out = append(out, s.nodePort(family, external)...)
		}
	}
	if err != nil {
		return nil, err
	}
	return s.addRanges(k, out)
}

func (s *set) nodePort(of family, policy service.Policy) (out []frontend) {
	for _, addr := range s.NodePorts {
		if familyOf(addr) == of {
			out = append(out, frontend{field: "nodePort", addr: addr, policy: policy, atNodePort: true, external: true})
		}
	}
	if s.NodePorts != nil {
		return out
	}
	all := map[family]netip.Addr{"IPv4": netip.IPv4Unspecified(), "IPv6": netip.IPv6Unspecified()}[of]
	out = append(out, frontend{field: "nodePort", addr: all, policy: policy, atNodePort: true, nodePort: true})
	if s.Localhost && of == "IPv4" {
		out = append(out, frontend{field: "nodePort", addr: netip.AddrFrom4([4]byte{127, 0, 0, 1}), atNodePort: true})
	}
	return out
}

func (k *kubeService) clusterIPs() []string {
	if len(k.Spec.ClusterIPs) == 0 && k.Spec.ClusterIP != "" {
		return []string{k.Spec.ClusterIP}
	}
	return k.Spec.ClusterIPs
}

// addRanges adds the source ranges to the addresses of the load balancer. It leaves out an address if all ranges are of
// the other family: kube-proxy opens it to all.
func (s *set) addRanges(k *kubeService, frontends []frontend) (out []frontend, err error) {
	ranges, err := k.sourceRanges()
	if err != nil && !s.cluster {
		return nil, err
	}
	if err != nil {
		s.refuse("%s: %v", k.origin, err)
		return slices.DeleteFunc(frontends, func(f frontend) bool { return f.ranged }), nil
	}
	for _, f := range frontends {
		if f.ranged {
			f.ranges = ranges[familyOf(f.addr)]
		}
		if f.ranged && len(f.ranges) == 0 && len(ranges) > 0 {
			s.note("%s: %s left out: no spec.loadBalancerSourceRanges is %s", k.origin, f.field, familyOf(f.addr))
			continue
		}
		out = append(out, f)
	}
	return out, nil
}

func (k *kubeService) sourceRanges() (map[family][]netip.Prefix, error) {
	byFamily := map[family][]netip.Prefix{}
	for i, text := range k.Spec.LoadBalancerSourceRanges {
		r, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("spec.loadBalancerSourceRanges[%d]: invalid range %q", i, text)
		}
		r = r.Masked() // as kube-proxy does
		byFamily[familyOf(r.Addr())] = append(byFamily[familyOf(r.Addr())], r)
	}
	for family, all := range byFamily { // sorted once, not for each frontend
		slices.SortFunc(all, netip.Prefix.Compare)
		byFamily[family] = slices.Compact(all)
	}
	return byFamily, nil
}
