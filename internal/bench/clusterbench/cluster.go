// SPDX-License-Identifier: Apache-2.0

// Package clusterbench makes the pods that a bench of a Kubernetes cluster measures between, in a namespace of its own.
package clusterbench

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/kube"
	"mustang/internal/load"
	"mustang/internal/result"
)

// Program is where mustang is in its image.
const Program = "/usr/bin/mustang"

// Options select a cluster and a part of it.
type Options struct {
	Access  Access
	Nodes   []string      // the names of the node of all clients and of the further one; empty means any
	Image   string        // has this version of mustang at [Program]
	IPv6    bool          // measures the IPv6 addresses instead of the IPv4 addresses
	Longest time.Duration // after it the pods end by themselves
	// LabAfter, if not 0, adds a privileged pod on the first node, in which labs can be built. It ends a few minutes after
	// LabAfter, unless a process of a lab runs in it.
	LabAfter time.Duration
	Note     func(text string) // prints a line about the progress
}

// Cluster is a cluster with the pods of a bench.
type Cluster struct {
	options  Options
	exe      string // this program
	api      *api
	nodes    []corev1.Node
	pods     []*pod
	services map[string]netip.Addr // cluster IPs by the name of the server's pod
	hostless string                // why the cluster lacks pods in the networks of nodes; "" if it has them
	labless  string                // why the cluster lacks the pod of labs; "" if it has it
	notes    []string
	machine  host.Description
}

type pod struct {
	name, node string
	host       bool // in the network of its node
	server     bool
	lab        bool // privileged, for labs
	port       uint16
	id         string // its name in the cluster
	addresses  []netip.Addr
}

// Ports of servers. A pod serves plainPort, which its Service lacks, and the Service's servicePort and probePort. On
// nodes, where other programs have ports too, they begin at a random port of hostsPorts, from firstHostPort on.
const (
	plainPort                 = 5200
	servicePort               = 5201
	probePort                 = 5202
	firstHostPort, hostsPorts = 20000, 10000
)

// Names of pods.
const (
	client, hostClient = "client", "host-client"
	sameServer         = "server-same-node"
	twoServer          = "server-two-nodes"
	onHost             = "host-"
	labs               = "labs"
)

// Close removes the namespace with all that is in it.
func (c *Cluster) Close() error { return c.api.removeNamespace(c.options.Note) }

// RunLab runs mustang with arguments in the pod of labs, which [Options] asked for.
func (c *Cluster) RunLab(ctx context.Context, stdout, stderr io.Writer, args ...string) error {
	if c.labless != "" {
		return errors.New(c.labless)
	}
	return c.api.exec(ctx, c.pod(labs).id, append([]string{Program}, args...),
		kube.ExecStreams{Stdout: stdout, Stderr: stderr})
}

const errOneNode = "the cluster has one node that is ready and takes pods, and this path is across two"

// Suite returns the suite of the pods.
func (c *Cluster) Suite() suites.Suite {
	none := suites.ClusterEnds{Skip: errOneNode}
	two := suites.ClusterPlacement{Host: none, Pod: none}
	if len(c.nodes) > 1 {
		two = c.placement(twoServer)
	}
	return suites.Cluster(c.placement(sameServer), two)
}

func (c *Cluster) placement(server string) suites.ClusterPlacement {
	at := suites.ClusterPlacement{
		Host: suites.ClusterEnds{Skip: c.hostless},
		Pod: suites.ClusterEnds{Client: client, Server: server, Addresses: c.pod(client).addresses,
			Listen: c.address(server)},
		Service: netip.AddrPortFrom(c.services[server], servicePort),
		Backend: netip.AddrPortFrom(c.address(server).Addr(), servicePort),
	}
	if c.hostless == "" {
		at.Host = suites.ClusterEnds{Client: hostClient, Server: onHost + server, Listen: c.address(onHost + server)}
	}
	return at
}

func (c *Cluster) pod(name string) *pod {
	return c.pods[slices.IndexFunc(c.pods, func(p *pod) bool { return p.name == name })]
}

func (c *Cluster) address(name string) netip.AddrPort {
	p := c.pod(name)
	return netip.AddrPortFrom(p.addresses[0], p.port)
}

// Agent returns how to start an agent in a pod: by a process of this program, which does what `kubectl exec -i` does.
func (c *Cluster) Agent(name string) load.AgentOptions {
	return load.AgentOptions{
		Shell: c.options.Access.command(c.exe, c.pod(name).id), Exe: Program, CPU: -1,
		Start: func(cmd *exec.Cmd) error {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // no signals from the terminal
			return cmd.Start()
		},
	}
}

// Describe replaces the description of this machine in the head of a result file with the description of the nodes.
func (c *Cluster) Describe(head *result.Run) {
	head.Machine, head.Kernel, head.Settings = c.machine.Machine, c.machine.Kernel, c.machine.Settings
	for _, program := range []string{"iptables", "nft", "ovs", "qemu"} {
		delete(head.Versions, program)
	}
	info := c.nodes[0].Status.NodeInfo
	head.Versions["kubelet"], head.Versions["container runtime"] = info.KubeletVersion, info.ContainerRuntimeVersion
	head.Pinning = map[string]int{}
	head.Notes = append(head.Notes, c.notes...)
}
