// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"net/netip"

	"mustang/internal/advise"
	"mustang/internal/bench/evidence"
	"mustang/internal/result"
)

// ClusterName is the name of the suite of a Kubernetes cluster.
const ClusterName = "cluster"

// ClusterPlacement locates the ends of the paths of a placement.
type ClusterPlacement struct {
	// Host are the ends in the network of their nodes, and Pod the ends in pod networks.
	Host, Pod ClusterEnds
	// Service is the cluster IP of the pods' server, and Backend the address that it leads to. The port of the address
	// in Pod belongs to no service: else the pod IP would pay part of the service's cost there.
	Service, Backend netip.AddrPort
}

// ClusterEnds are a client and a server, which listens at an address.
type ClusterEnds struct {
	// Client and Server are the names of their pods.
	Client, Server string
	Addresses      []netip.Addr // the client's addresses; none if it uses the addresses of its node
	Listen         netip.AddrPort
	Skip           string // the reason why nothing is measured between them, or ""
}

// Cluster returns the suite of the ways between the pods of a Kubernetes cluster, on one node and across two.
func Cluster(same, two ClusterPlacement) Suite {
	s := newSuite("What do pod IPs and cluster IPs cost in this cluster?", usualTCP()...)
	s.Name = ClusterName
	s.Doc = "a Kubernetes cluster: host to host, pod to pod, pod to service, on one node and across two"
	s.Report.Answer = []string{result.AnswerStatements}
	s.Report.Series = []result.Series{
		{Name: "host", Color: result.ColorSlate}, {Name: "pod IP", Color: result.ColorTeal},
		{Name: "cluster IP", Color: result.ColorBlue},
	}
	s.Report.Statements = []result.Statement{
		{Caption: "Pod IP against host", Subject: "by pod IP", Object: "between hosts"},
		{Caption: "Cluster IP against pod IP", Subject: "by cluster IP", Object: "by pod IP"},
	}
	s.Report.Notes = []string{"Client and server run where the nodes' schedulers put them, on one CPU or on two. " +
		"Intervals are over processes: the nodes, the pods and their addresses stay the same for the whole run."}
	s.addPlacement("same node", advise.SameNode, same, nil)
	s.addPlacement("two nodes", advise.TwoNodes, two, &evidence.Route{TwoHosts: true})
	return s
}

func (s *Suite) addPlacement(label, name string, at ClusterPlacement, route *evidence.Route) {
	backend := at.Pod
	backend.Listen = at.Backend
	group, r := result.Group{Caption: label}, &s.Report
	for i, row := range []struct {
		kind, link, target string
		ends               ClusterEnds
		connect            netip.AddrPort
	}{
		{"host/", result.LinkHost, result.TargetHostIP, at.Host, at.Host.Listen},
		{"pod-ip/", "pod", result.TargetPodIP, at.Pod, at.Pod.Listen},
		{"cluster-ip/", "pod", result.TargetClusterIP, backend, at.Service},
	} {
		p := Path{ID: row.kind + name, Baseline: i == 0, Skip: row.ends.Skip, Path: evidence.Path{
			Link: row.link, Target: row.target, Via: result.ViaNone, Client: row.ends.Client, Server: row.ends.Server,
			Connect: row.connect, Listen: row.ends.Listen, Ends: &evidence.Ends{Client: row.ends.Addresses}, Route: route,
		}}
		if s.add(p); i == 0 {
			s.repeat(p)
		} else {
			than := group.Rows[i-1]
			s.ask([]string{"", "", result.AsksService}[i], p.ID, than)
			r.Statements[i-1].Pairs = append(r.Statements[i-1].Pairs, pairOf(p.ID, than, label))
		}
		group.Rows, r.Series[i].Rows = append(group.Rows, p.ID), append(r.Series[i].Rows, p.ID)
	}
	r.Groups = append(r.Groups, group)
}
