// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/monitor"
	"mustang/cmd/mustang/internal/nodeagent"
	"mustang/internal/agent"
	"mustang/internal/agent/status"
	"mustang/internal/cgroup"
	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
	"mustang/internal/cni/server"
	"mustang/internal/datapath"
	"mustang/internal/kube"
	"mustang/internal/netns"
	"mustang/internal/service/health"
	"mustang/internal/version"
)

// agentOptions are the flags of an agent.
type agentOptions struct {
	node, kubeconfig, cgroup, netns string
	uplinks, nodePorts              []string
	healthz, metrics                string
	cniSocket, runDir               string
	nodes                           agentNodes
	quota                           int
}

// collectAt is how much the heap may grow, in percent, before garbage is collected: an agent is idle mostly, and pods need the memory.
const collectAt = 50

// nothing is the value of a flag that says that there is to be none.
const nothing = "none"

// maxQuota is the largest divisor of --namespace-quota: the smallest quota of a map has some rows still.
const maxQuota = 1024

func (c *config) agent() *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent --node NAME",
		Short: "Serve the Services and policies of a Kubernetes cluster on this node, until a signal ends it",
		Long: `Follow the Services, EndpointSlices and network policies of a Kubernetes cluster, and program them
in this node's datapath, as owner agent. Services and policies of other owners stay. The agent
changes nothing before it has read all objects. When it ends or is killed, services
and policies stay in force, and traffic goes on.

It serves pods, processes of the node (--cgroup) and clients outside (--uplink), and answers at the
health-check node ports of Services.

Connect the pods of this node with the pods of other nodes. The container runtime attaches pods with
addresses from the podCIDRs of the Node object.

Without --kubeconfig it uses the service account of the pod that it is in.`,
		Example: "  mustang agent --node=node-1 --kubeconfig=/etc/kubernetes/admin.conf",
		Args:    cli.KnownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.node == "" {
				return cli.Usage(errors.New("--node is missing: the name of this node in `kubectl get nodes`"))
			}
			if o.healthz != "" && o.healthz == o.metrics {
				return cli.Usage(errors.New("--metrics-address: --healthz-address is the same"))
			}
			if err := cmp.Or(checkAddress("healthz", o.healthz), checkAddress("metrics", o.metrics)); err != nil {
				return cli.Usage(err)
			}
			if slices.Contains(o.uplinks, "") {
				return cli.Usage(errors.New("--uplink: empty: want a device, or none"))
			}
			if slices.Contains(o.uplinks, nothing) && len(o.uplinks) > 1 {
				return cli.Usage(errors.New("--uplink: none and a device"))
			}
			if o.quota < 1 || o.quota > maxQuota {
				return cli.Usage(fmt.Errorf("--namespace-quota %d: want 1 to %d", o.quota, maxQuota))
			}
			if err := o.nodes.check(); err != nil {
				return cli.Usage(err)
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			o.nodes.runDir, o.nodes.bpfRoot = c.Getenv("MUSTANG_CNI_RUN_DIR"), c.BPFRoot
			return c.runAgent(cmd.Context(), o)
		},
	}
	cmd.AddCommand(nodeagent.Status(c.Config), nodeagent.Cleanup(c.Config))
	flags := cmd.Flags()
	o.nodes.addFlags(flags)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the address of the API server and credentials")
	flags.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "`name` of this node in the cluster ($NODE_NAME)")
	flags.StringVar(&o.cgroup, "cgroup", "", "control group whose processes reach services, a `path`, or none; by default the root of cgroup v2")
	flags.StringArrayVar(&o.uplinks, "uplink", nil, "`device` by which clients outside reach services, or none; repeat for more; by default those with an InternalIP of the node")
	flags.StringSliceVar(&o.nodePorts, "nodeport-addresses", nil, "`prefix` of addresses of the node that have the node ports; repeat for more; or primary: the Node object's; by default all")
	flags.StringVar(&o.healthz, "healthz-address", "", "`address` and port that answer at /healthz, /livez and /readyz, such as 0.0.0.0:10256; empty: none")
	flags.StringVar(&o.metrics, "metrics-address", "", "`address` and port that answer at /metrics, such as 127.0.0.1:10249; empty: none")
	flags.IntVar(&o.quota, "namespace-quota", 8, "`divisor`: the Services of a namespace, and its NetworkPolicies, have one part in so many of the rows of each map; 1: no quota")
	flags.StringVar(&o.cniSocket, "cni-socket", server.DefaultSocket, "`path` of the socket at which it does the work of the CNI plugin, or none; the plugin looks at the default, or $"+server.SocketVariable)
	nodeagent.AddNodeNamespace(flags, &o.netns)
	nodeagent.AddRunDir(flags, &o.runDir)
	return cmd
}

func (c *config) runAgent(ctx context.Context, o agentOptions) (err error) {
	ranges, primary, err := o.nodePortRanges()
	if err != nil {
		return err
	}
	if o.cgroup, err = findCgroup(o.cgroup); err != nil {
		return err
	}
	client, err := kube.Connect(o.kubeconfig)
	if err != nil {
		return err
	}
	if slices.Contains(o.uplinks, nothing) {
		o.uplinks = []string{}
	}
	unlock, err := o.claim(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	state := status.NewTracker()
	state.Tell(monitor.Collector{Root: c.BPFRoot})
	listeners, err := o.listen(ctx, state)
	defer func() {
		for l := range listeners {
			_ = l.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := mountBPF(c.BPFRoot); err != nil {
		return err
	}
	o.nodes.pods.AwaitsAgent = o.cniSocket != nothing && o.nodes.pods.Services != netconf.ServicesOff
	debug.SetGCPercent(collectAt)
	checks := health.New()
	defer func() { err = errors.Join(err, checks.Close()) }()
	log := slog.New(slog.NewTextHandler(c.Stderr, nil))
	kube.LogTo(log)
	return cli.WithNamespace(o.netns, func(ns *netns.Namespace) error {
		network := o.nodes.network(ns, client.Addresses)
		return c.OnDatapath(ctx, func(d *datapath.Datapath) error {
			all, ctx := errgroup.WithContext(ctx)
			for l, handler := range listeners {
				all.Go(func() error { return status.ServeAt(ctx, l, handler) })
			}
			services := d.Services()
			room, err := services.Room()
			if err != nil {
				return err
			}
			forward := func(addresses []netip.Addr) error { return cni.EnableForwarding(ns, addresses) }
			a := agent.New(agent.Options{
				Node: o.node, Source: client, Services: services, Room: room, NamespaceQuota: o.quota, Policies: d.Policies(), Health: checks,
				Access: agent.Host{Datapath: d, Namespace: ns, Cgroup: o.cgroup, Uplinks: o.uplinks, Ranges: ranges, Primary: primary, Forward: forward},
				Nodes:  network, Attacher: &o.nodes, Status: client, Events: client, State: state, Log: log,
				Config: o.status(), Endpoints: d.Endpoints(), Warnings: o.nodes.apart,
			})
			network.ClusterIPs = a.ClusterIPs
			all.Go(func() error {
				plugin := cni.Plugin{Await: a.AwaitPod}
				return c.serveCNI(ctx, server.Options{Socket: o.cniSocket, Host: ns, Plugin: plugin, Observe: state.Verb, Log: log})
			})
			all.Go(func() error {
				// Services matter more than whoever asks for them.
				if err := status.ServeSocket(ctx, o.runDir, nodeagent.Handler(a.Report, state.Metrics())); err != nil {
					log.Error("mustang agent status gets no answer", "error", err)
				}
				return nil
			})
			all.Go(func() error { return a.Run(ctx) })
			return all.Wait()
		})
	})
}

// claim makes this the only agent of the node, until it is unlocked.
func (o agentOptions) claim(ctx context.Context) (unlock func(), err error) {
	lock, err := status.Claim(ctx, o.runDir)
	if err != nil {
		return nil, err
	}
	socket := cmp.Or(o.cniSocket, server.DefaultSocket)
	used, err := server.InUse(socket)
	if used {
		err = fmt.Errorf("another agent serves at %s, with another --run-dir", socket)
	}
	if err != nil {
		lock.Unlock()
		return nil, fmt.Errorf("--cni-socket: %w", err)
	}
	return lock.Unlock, nil
}

// checkAddress refuses what is no address and port to listen at. Whether the node has it is found out there.
func checkAddress(of, text string) error {
	if text == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("--%s-address %q: want an address and port like 127.0.0.1:10249", of, text)
	}
	return nil
}

// findCgroup returns the path of the control group that a flag names, none for nothing.
func findCgroup(flag string) (string, error) {
	switch flag {
	case "":
		return cgroup.Root()
	case nothing:
		return "", nil
	}
	group, err := cgroup.Open(flag)
	if err != nil {
		return "", fmt.Errorf("--cgroup: %w", err)
	}
	group.Close()
	return flag, nil
}

// listen opens the addresses of probes and metrics, also those before an error.
func (o agentOptions) listen(ctx context.Context, state *status.Tracker) (map[net.Listener]http.Handler, error) {
	all := map[net.Listener]http.Handler{}
	for flag, handler := range map[string]http.Handler{"healthz-address": state.Probes(), "metrics-address": state.Metrics()} {
		address := map[string]string{"healthz-address": o.healthz, "metrics-address": o.metrics}[flag]
		if address == "" {
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: does kube-proxy run? Its DaemonSet has to go first", err)
		}
		if err != nil {
			return all, fmt.Errorf("--%s=%s: %w", flag, address, err)
		}
		all[l] = handler
	}
	return all, nil
}

// status is what the agent tells of how it was started.
func (o agentOptions) status() status.Config {
	return status.Config{
		Node: o.node, Version: version.Program(), PID: os.Getpid(), Link: o.nodes.pods.Link, Services: o.nodes.pods.Services,
		Routing: string(o.nodes.options.Routing),
	}
}

// nodePortRanges parses where node ports are to be.
func (o agentOptions) nodePortRanges() (ranges []netip.Prefix, primary bool, err error) {
	if len(o.nodePorts) == 1 && o.nodePorts[0] == "primary" {
		return nil, true, nil
	}
	for _, text := range o.nodePorts {
		r, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, false, cli.Usage(fmt.Errorf("--nodeport-addresses %q: want a prefix like 192.0.2.0/24, or primary alone", text))
		}
		ranges = append(ranges, r.Masked())
	}
	return ranges, false, nil
}
