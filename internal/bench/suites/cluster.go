// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"net/netip"

	"mustang/internal/bench/evidence"
	"mustang/internal/result"
)

// ClusterName is the name of the suite of a Kubernetes cluster.
const ClusterName = "cluster"

// Placements of a cluster's suite, the ends of the IDs of its paths.
const (
	SameNode = "same-node"
	TwoNodes = "two-nodes"
)

// ClusterPlacement locates the ends of the paths of a placement.
type ClusterPlacement struct {
	// Host are the ends in the network of their nodes, and Pod the ends in pod networks.
	Host, Pod ClusterEnds
	// Service is the cluster IP of the pods' server, and Backend the address that it leads to. The port of the address
	// in Pod belongs to no service: else the pod IP would pay part of the service's cost there.
	Service, Backend netip.AddrPort
}

// ClusterEnds are a client and a server.
type ClusterEnds struct {
	// Client and Server are the names of their pods.
	Client, Server string
	// Addresses are the client's addresses; none if it uses the addresses of its node.
	Addresses []netip.Addr
	// Listen is the server's address.
	Listen netip.AddrPort
	// Skip is the reason why nothing is measured between them, or "".
	Skip string
}

// Cluster returns the suite that compares the ways between the pods of a Kubernetes cluster, on one node and across
// two.
func Cluster(same, two ClusterPlacement) Suite {
	s := Suite{
		Name:      ClusterName,
		Doc:       "a Kubernetes cluster: host to host, pod to pod, pod to service, on one node and across two",
		Workloads: usualTCP(),
		Report: result.Suite{
			Question: "What do pod IPs and cluster IPs cost in this cluster?",
			Answer:   []string{result.AnswerStatements},
			Groups:   []result.Group{{Caption: "same node"}, {Caption: "two nodes"}},
			Series: []result.Series{
				{Name: "host", Color: result.ColorSlate}, {Name: "pod IP", Color: result.ColorTeal},
				{Name: "cluster IP", Color: result.ColorBlue},
			},
			Statements: []result.Statement{
				{Caption: "Pod IP against host", Subject: "by pod IP", Object: "between hosts"},
				{Caption: "Cluster IP against pod IP", Subject: "by cluster IP", Object: "by pod IP"},
			},
			Notes: []string{"Client and server run where the nodes' schedulers put them, on one CPU or on two. " +
				"Intervals are over processes: the nodes, the pods and their addresses stay the same for the whole run."},
		},
	}
	s.addPlacement(0, SameNode, same)
	s.addPlacement(1, TwoNodes, two)
	return s
}

func (s *Suite) addPlacement(group int, name string, at ClusterPlacement) {
	path := func(kind, link, target string, ends ClusterEnds, connect netip.AddrPort) Path {
		p := Path{ID: kind + "/" + name, Baseline: link == result.LinkHost, Skip: ends.Skip, Path: evidence.Path{
			Link: link, Target: target, Via: result.ViaNone, Client: ends.Client, Server: ends.Server, Connect: connect,
			Listen: ends.Listen,
			Ends:   &evidence.Ends{Client: ends.Addresses},
		}}
		if name == TwoNodes {
			p.Route = &evidence.Route{TwoHosts: true}
		}
		return p
	}
	host := path("host", result.LinkHost, result.TargetHostIP, at.Host, at.Host.Listen)
	pod := path("pod-ip", "pod", result.TargetPodIP, at.Pod, at.Pod.Listen)
	backend := at.Pod
	backend.Listen = at.Backend
	service := path("cluster-ip", "pod", result.TargetClusterIP, backend, at.Service)
	s.addBaseline(host)
	s.Paths = append(s.Paths, pod, service)
	s.compare(pod.ID, host.ID)
	s.ask(result.AsksService, service.ID, pod.ID)
	r := &s.Report
	for i, p := range []Path{host, pod, service} {
		r.Groups[group].Rows = append(r.Groups[group].Rows, p.ID)
		r.Series[i].Rows = append(r.Series[i].Rows, p.ID)
	}
	label := r.Groups[group].Caption
	r.Statements[0].Pairs = append(r.Statements[0].Pairs, result.Pair{Numerator: pod.ID, Denominator: host.ID,
		Label: label})
	r.Statements[1].Pairs = append(r.Statements[1].Pairs, result.Pair{Numerator: service.ID, Denominator: pod.ID,
		Label: label})
}
