// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

var otherServices = netip.AddrFrom4([4]byte{10, 100, 0, 0})

// Services returns the services of pod-a in topology pod-links: per port, from [ServicePort] on, and address family.
func Services(more ...uint16) []service.Service {
	frontends := []netip.Addr{netip.MustParseAddr("10.96.0.100"), netip.MustParseAddr("fd00:96::100")}
	var services []service.Service
	for _, port := range append([]uint16{ServicePort}, more...) {
		for i, frontend := range frontends {
			services = append(services, toPodA(i, netip.AddrPortFrom(frontend, port), port))
		}
	}
	return services
}

// toPodA returns a service of a port of pod-a, for TCP and UDP; family is 0 for IPv4, 1 for IPv6.
func toPodA(family int, frontend netip.AddrPort, port uint16) service.Service {
	return service.Service{Frontend: frontend, Protocol: service.Any,
		Backends: service.Backends(netip.AddrPortFrom(PodAIPs[family], port))}
}

// others returns further TCP services of pod-a, each with backends at its ports from [ServicePort] on.
func others(number, backends int) (services []service.Service) {
	var of []netip.AddrPort
	for i := range backends {
		of = append(of, netip.AddrPortFrom(PodAIPs[0], ServicePort+uint16(i)))
	}
	at := otherServices.As4()
	for i := 1; i <= number; i++ {
		at[1], at[2], at[3] = otherServices.As4()[1]+byte(i>>16), byte(i>>8), byte(i)
		services = append(services, service.Service{
			Frontend: netip.AddrPortFrom(netip.AddrFrom4(at), ServicePort), Protocol: service.TCP,
			Backends: service.Backends(of...),
		})
	}
	return services
}

// Published returns the services that publish pod-a's [ServicePort] as [PublishedPort] of the host, at its own
// addresses and on loopback. A lab of topology pod-links has them with [ViaEBPFSocket].
func Published() []service.Service {
	loopback := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	var services []service.Service
	for i, gateway := range Gateways {
		for _, at := range []netip.Addr{gateway.Addr(), loopback[i]} {
			services = append(services, toPodA(i, netip.AddrPortFrom(at, PublishedPort), ServicePort))
		}
	}
	return services
}

// services has the services of pod-a in the middle: a search from either end passes half of the others.
func (o Options) services(backends int) []service.Service {
	all := others(max(o.Services-1, 0), backends)
	return slices.Insert(all, len(all)/2, Services(o.ports()...)...)
}

func (l *Lab) proxyWith(services []service.Service) (_ *proxy, r proxyRules, err error) {
	if l.kubeProxy == nil {
		l.kubeProxy, err = openProxy(l.Options.Via, l.namespaces[Host])
	}
	return l.kubeProxy, proxyRules{
		Services: services,
		PodCIDRs: []netip.Prefix{Gateways[0].Masked(), Gateways[1].Masked()},
		// A pod on the same segment would reply past the host, which has to translate the reply.
		MasqueradeAll: !l.Options.traits().Routed && !l.Options.NetfilterCall,
	}, err
}

// addServices adds the services; with eBPF it opens the lab's datapath, with the pods as its endpoints.
func (l *Lab) addServices(ctx context.Context) error {
	switch l.Options.Via {
	case ViaNone:
		return nil
	case ViaIPTables, ViaNFTables, ViaIPVS:
		p, rules, err := l.proxyWith(l.Options.services(OtherBackends))
		if err != nil {
			return err
		}
		rules.Sorted = true
		return p.write(ctx, rules)
	}
	if err := l.openDatapath(ctx); err != nil {
		return err
	}
	if _, err := l.datapath.Services().Apply(ctx, owner, l.AllServices(OtherBackends)); err != nil {
		return err
	}
	if l.Options.Datapath == DatapathEBPF {
		if err := l.addEndpoints(ctx, l.datapath, PodA, PodB); err != nil {
			return err
		}
	}
	if l.Options.Via == ViaEBPFSocket {
		return l.addSocketTranslation(ctx)
	}
	return nil
}

// addHostServices adds the services of pod-a to two hosts: rules on both, as kube-proxy does, or the datapath of
// host-b, where the client is.
func (l *Lab) addHostServices(ctx context.Context, hosts []*host) error {
	services := l.Options.services(OtherBackends)
	switch l.Options.Via {
	case ViaIPTables, ViaNFTables, ViaIPVS:
		for _, h := range hosts {
			p, err := openProxy(l.Options.Via, h.ns)
			if err == nil {
				err = p.write(ctx, proxyRules{Services: services, PodCIDRs: h.podCIDRs, Sorted: true})
			}
			if err != nil {
				return fmt.Errorf("%s: %w", h.place, err)
			}
		}
		return nil
	}
	if l.datapath == nil {
		if err := l.openDatapath(ctx); err != nil {
			return err
		}
	}
	if _, err := l.datapath.Services().Apply(ctx, owner, services); err != nil || l.Options.Via != ViaEBPFSocket {
		return err
	}
	return l.addSocketTranslation(ctx)
}

// WriteServices writes the services of a lab without any, by the lab's implementation, as after a start.
func (l *Lab) WriteServices(ctx context.Context, services []service.Service) error {
	if l.datapath != nil {
		_, err := l.datapath.Services().Apply(ctx, owner, services)
		return err
	}
	p, rules, err := l.proxyWith(services)
	if err != nil {
		return err
	}
	return p.write(ctx, rules)
}

// ClearServices removes the services of a lab.
func (l *Lab) ClearServices(ctx context.Context) error {
	if l.datapath != nil {
		return l.WriteServices(ctx, nil)
	}
	p, _, err := l.proxyWith(nil)
	if err != nil {
		return err
	}
	return p.clear(ctx)
}

// ChangeService gives a service of a lab the backends of services[i]; services are all of
// them. It does what the lab's implementation does after a change of one service.
func (l *Lab) ChangeService(ctx context.Context, services []service.Service, i int) error {
	if l.datapath != nil {
		_, _, err := l.datapath.Services().Put(ctx, owner, services[i])
		return err
	}
	p, rules, err := l.proxyWith(services)
	if err != nil {
		return err
	}
	return p.write(ctx, rules, service.Key{Frontend: services[i].Frontend, Protocol: services[i].Protocol})
}

// AllServices returns the services that a lab of topology pod-links was built with, with another number of backends
// than [OtherBackends] if it differs. Each of the others has its backends at ports of pod-a from [ServicePort] on.
func (l *Lab) AllServices(backends int) []service.Service {
	services := l.Options.services(backends)
	if l.Options.Via == ViaEBPFSocket {
		services = append(services, Published()...)
	}
	return services
}

// Probe returns what this machine lacks for the services or sockmap, or nil. The error matches errors.ErrUnsupported.
func (o Options) Probe() error {
	if o.Sockmap {
		return probeSockmap(o.Name)
	}
	switch o.Via {
	case ViaIPVS:
		host, err := netns.Current()
		if err != nil {
			return err
		}
		defer host.Close()
		if err := rtnl.In(host).TryGenericFamily("IPVS"); err != nil {
			return fmt.Errorf("the kernel lacks IPVS (CONFIG_IP_VS): %w", err)
		}
	case ViaEBPFSocket: // in containers of a host with cgroup v1
		if _, err := cgroupPath(o.Name); err != nil {
			return errNoCgroup
		}
	}
	return nil
}
