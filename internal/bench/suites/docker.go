// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"net/netip"
	"slices"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/result"
)

func docker() Suite {
	s := newSuite("What does each of Docker's network modes cost?", tcpStreams(1), tcpRR())
	s.Report.Answer, s.Report.Reference = []string{result.AnswerReference, result.AnswerStatements}, "host-to-host"
	s.addBaseline(hostsPath("host-to-host", lab.HostB, lab.HostA, lab.Options{Link: lab.LinkHost}))
	host := dockerPath("host-mode", lab.HostB, lab.ContainerHost, fromOtherHost...)
	host.Link, host.Target = result.LinkHost, result.TargetHostIP
	host.Route.Avoids = []evidence.Device{{Place: lab.HostA, Name: dockerBridge}}
	for _, p := range []Path{
		host,
		toPort("published-port/two-hosts", lab.HostB),
		toPort("published-port/same-host", lab.HostA),
		toPortLocally("published-port/localhost", false),
		toPortLocally("published-port/localhost/no-proxy", true),
		toPort("container-to-container/host-ip", lab.ContainerB),
		toContainer("container-to-container/ip", lab.ContainerB),
	} {
		s.add(p, "host-to-host")
	}
	s.state("From another host, a published port against host mode", "published-port/two-hosts", "host-mode")
	s.state("On the host itself, a published port at 127.0.0.1 against the host's address",
		"published-port/localhost", "published-port/same-host")
	s.state("At 127.0.0.1, Docker's proxy against rules alone",
		"published-port/localhost", "published-port/localhost/no-proxy")
	s.state("From container to container, the host's address and port against the container's own",
		"container-to-container/host-ip", "container-to-container/ip")
	return s
}

const dockerBridge = "docker0"

var (
	dockerGateway  = netip.AddrFrom4([4]byte{172, 17, 0, 1})
	overBridge     = evidence.Sends(lab.HostA, dockerBridge)
	fromOtherHost  = []evidence.Step{evidence.Sends(lab.HostB, lab.Uplink), evidence.Receives(lab.HostA, lab.Uplink)}
	outOfContainer = []evidence.Step{evidence.Sends(lab.ContainerB, lab.IfName),
		hostEnd(evidence.Receives, lab.ContainerB)}
	intoContainer = []evidence.Step{hostEnd(evidence.Sends, lab.ContainerA),
		evidence.Receives(lab.ContainerA, lab.IfName)}
)

func hostEnd(step func(place, name string) evidence.Step, container string) evidence.Step {
	s := step(lab.HostA, "")
	s.LinkOf = container
	return s
}

func dockerPath(id, client, server string, steps ...evidence.Step) Path {
	p := Path{ID: id, Variant: "docker", Path: evidence.Path{
		Link: "bridge", Client: client, Server: server, Target: result.TargetPodIP, Via: result.ViaNone,
		Lab:   lab.Options{Topology: lab.TopologyDocker, Link: "bridge", Datapath: lab.DatapathKernel, Via: lab.ViaNone},
		Route: &evidence.Route{TwoHosts: client == lab.HostB, Steps: steps},
	}}
	return p.connectTo(lab.Addresses(p.Lab, server)[0])
}

func toContainer(id, client string) Path {
	steps := []evidence.Step{overBridge}
	if client == lab.ContainerB {
		steps = outOfContainer
	}
	return dockerPath(id, client, lab.ContainerA, slices.Concat(steps, intoContainer)...)
}

func toPort(id, client string) Path {
	p := dockerPath(id, client, lab.ContainerA, overBridge).publishedAt(lab.Addresses(lab.Options{
		Topology: lab.TopologyDocker, Link: "bridge"}, lab.HostA)[0])
	p.Via, p.Route.TranslatedAt = result.ViaDocker, lab.HostA
	switch client {
	case lab.HostB:
		p.Route.Steps = append(slices.Clone(fromOtherHost), overBridge)
	case lab.ContainerB: // in through the bridge, to Docker's proxy, and out through the bridge
		p.Note = "through Docker's user-land proxy: its rules for published ports exclude packets from the bridge"
		p.Route.Proxied, p.Route.SeenAs, p.Route.TranslatedAt = true, dockerGateway, ""
		p.Route.Steps = append(slices.Clone(outOfContainer), evidence.Loops(lab.HostA, dockerBridge))
	}
	p.Route.Steps = slices.Concat(p.Route.Steps, intoContainer)
	return p
}

// toPortLocally is the path to the published port on 127.0.0.1: by Docker's proxy, or with noProxy by rules alone.
func toPortLocally(id string, noProxy bool) Path {
	p := toPort(id, lab.HostA)
	p.Lab.NoProxy = noProxy
	p.Connect = netip.AddrPortFrom(localhost, lab.PublishedPort)
	p.Route.SeenAs = dockerGateway
	if noProxy {
		p.Variant, p.Note = "docker no-proxy", "without Docker's user-land proxy: rules and route_localnet"
		p.Route.Avoids = []evidence.Device{{Place: lab.HostA, Name: "lo"}}
		return p
	}
	p.Note = "through Docker's user-land proxy"
	p.Route.Proxied, p.Route.TranslatedAt = true, ""
	p.Route.Steps = append([]evidence.Step{evidence.Loops(lab.HostA, "lo")}, p.Route.Steps...)
	return p
}
