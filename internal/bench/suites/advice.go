// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"mustang/internal/advise"
	"mustang/internal/lab"
)

// Advice returns the suite that compares the paths of a cluster's network, in labs, with the same paths by Mustang.
// Their IDs are of [advise.ID]. Mustang translates cluster IPs per packet, because labs make no control groups in the
// node's own hierarchy, which a privileged pod sees. The pod IP is compared too, since agents translate at sockets.
func Advice(m advise.Model) Suite {
	s := newSuite("What would another network give this cluster?", usualTCP()...)
	s.Name = "advice"
	s.Doc = "the paths of a cluster's network beside the same paths by Mustang, in labs"
	now := lab.Options{Link: m.Link, NetfilterCall: m.Link == "bridge", Datapath: lab.DatapathKernel, Via: m.Proxy}
	s.addPlan(advise.Now, m, now)
	s.addPlan(advise.WholeNetwork, m, lab.Options{Link: "veth", Datapath: lab.DatapathEBPF, Via: lab.ViaEBPFTC})
	if m.Proxy == lab.ViaIPTables {
		now.Via = lab.ViaNFTables
		s.addPlan(advise.NFTables, m, now)
	}
	return s
}

// addPlan adds the paths of a plan. On one host they have the plan's link; across two, veth, because a bridge's host
// routes too.
func (s *Suite) addPlan(plan string, m advise.Model, o lab.Options) {
	o.Services = max(1, m.Services)
	one := podPath("", o.Link)
	one.Lab.NetfilterCall, one.Lab.Datapath, one.Lab.Via, one.Lab.Services = o.NetfilterCall, o.Datapath, o.Via, o.Services
	two := func() Path { // each path has a route of its own
		return hostsPath("", lab.PodB, lab.PodA, lab.Options{Link: "veth", Overlay: m.Overlay, Datapath: o.Datapath,
			Via: o.Via, Services: o.Services})
	}
	service := two().toService(o.Via)
	if o.Datapath == lab.DatapathKernel {
		service.Route.TranslatedAt = lab.HostB
	}
	for _, p := range []struct {
		target, placement string
		Path
	}{
		{advise.PodIP, advise.SameNode, one}, {advise.ClusterIP, advise.SameNode, one.toService(o.Via)},
		{advise.PodIP, advise.TwoNodes, two()}, {advise.ClusterIP, advise.TwoNodes, service},
	} {
		path := p.target + "/" + p.placement
		p.Path.ID = advise.ID(plan, path)
		s.add(p.Path)
		now := advise.ID(advise.Now, path)
		if plan != advise.Now {
			s.compare(p.Path.ID, now)
		}
		if plan == advise.WholeNetwork && p.target == advise.ClusterIP {
			s.compare(advise.ID(plan, advise.PodIP+"/"+p.placement), now)
		}
	}
}
