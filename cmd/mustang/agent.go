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
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/cmd/mustang/internal/traffic"
	"mustang/internal/agent"
	"mustang/internal/agent/status"
	"mustang/internal/announce"
	"mustang/internal/cgroup"
	"mustang/internal/cni"
	"mustang/internal/cni/server"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/kube"
	"mustang/internal/netns"
	"mustang/internal/nodenet"
	"mustang/internal/pathprobe"
	"mustang/internal/service/health"
	"mustang/internal/version"
)

type agentOptions struct {
	node, kubeconfig, cgroup, netns string
	uplinks                         []string
	nodePorts                       []netip.Prefix // one that is not valid: primary
	healthz, metrics                string
	cniSocket, runDir               string
	nodes                           agentNodes
	quota                           int
	pools                           []netip.Prefix
	pathCheck                       time.Duration
}

const collectAt = 50 // GOGC: an agent is mostly idle, and pods need the memory

const nothing = "none" // the value of a flag that turns a feature off

const leastPathCheck = time.Minute // a check of a path with a fault takes half of it

// maxQuota is the largest divisor of --namespace-quota: the smallest quota of a map still has some rows.
const maxQuota = 1024

func (c *config) agent() *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent --node NAME",
		Short: "Serve the Services and policies of a Kubernetes cluster on this node, until a signal ends it",
		Long: `Follow the Services, EndpointSlices and network policies of a Kubernetes cluster, and program them
in this node's datapath. Services and policies of the command line stay. The agent changes nothing
before it has read all objects. If it ends or is killed, Services and policies stay in force.
Also connect the pods of this node with the pods of other nodes.

Without --kubeconfig, the agent uses the service account of its pod.`,
		Example: "  mustang agent --node=node-1 --kubeconfig=/etc/kubernetes/admin.conf",
		Args:    cli.KnownCommand,
		PreRunE: cli.Check(o.check),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			o.nodes.runDir, o.nodes.bpfRoot = c.Getenv("MUSTANG_CNI_RUN_DIR"), c.BPFRoot
			return c.runAgent(ctx, o)
		}),
	}
	cmd.AddCommand(node.AgentPreflight(c.Config), node.AgentStatus(c.Config), node.AgentCleanup(c.Config))
	flags := cmd.Flags()
	o.nodes.addFlags(flags)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the address of the API server and credentials")
	flags.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "`name` of this node in the cluster ($NODE_NAME)")
	flags.StringVar(&o.cgroup, "cgroup", "",
		"control group whose processes reach services, a `path`, or none; by default the root of cgroup v2")
	flags.StringArrayVar(&o.uplinks, "uplink", nil,
		"`device` through which clients outside reach services, or none; repeat for more; by default devices with an "+
			"InternalIP of the node")
	flags.Var(cli.List(&o.nodePorts, parseNodePorts, "a prefix like 192.0.2.0/24, or primary alone"), "nodeport-addresses",
		"`prefix` of addresses of the node that have the node ports; repeat for more; or primary: the Node "+
			"object's; by default all")
	flags.StringVar(&o.healthz, "healthz-address", "",
		"`address` and port that answer at /healthz, /livez and /readyz, such as 0.0.0.0:10256; empty: none")
	flags.StringVar(&o.metrics, "metrics-address", "",
		"`address` and port that answer at /metrics, such as 127.0.0.1:10249; empty: none")
	flags.IntVar(&o.quota, "namespace-quota", 8,
		"divisor `N`: the Services of a namespace get at most 1/N of the rows of each map, and so do its NetworkPolicies; "+
			"1: no quota")
	flags.Var(cli.List(&o.pools, netip.ParsePrefix, "a prefix like 192.0.2.0/28"), "lb-pool",
		"`prefix` of free addresses on the nodes' segment for Services of type LoadBalancer; repeat for more")
	flags.DurationVar(&o.pathCheck, "path-check", 0,
		"`interval` of checks of the path to another node, such as 5m: the path MTU. Answer checks of other nodes at UDP "+
			"port "+fmt.Sprint(pathprobe.DefaultPort)+"; 0: off")
	flags.StringVar(&o.cniSocket, "cni-socket", server.DefaultSocket,
		"`path` of the socket at which the agent works for the CNI plugin, or none; the plugin uses the default, or $"+
			server.SocketVariable)
	node.AddNodeNamespace(flags, &o.netns)
	node.AddRunDir(flags, &o.runDir)
	return cmd
}

func (o *agentOptions) check([]string) error {
	switch {
	case o.node == "":
		return errors.New("--node is missing: the name of this node in `kubectl get nodes`")
	case o.healthz != "" && o.healthz == o.metrics:
		return errors.New("--metrics-address: --healthz-address is the same")
	case slices.Contains(o.uplinks, ""):
		return errors.New("--uplink: empty: want a device, or none")
	case slices.Contains(o.uplinks, nothing) && len(o.uplinks) > 1:
		return errors.New("--uplink: none and a device")
	case o.quota < 1 || o.quota > maxQuota:
		return fmt.Errorf("--namespace-quota %d: want 1 to %d", o.quota, maxQuota)
	case o.pathCheck != 0 && o.pathCheck < leastPathCheck:
		return fmt.Errorf("--path-check %v: want 0, or at least %v", o.pathCheck, leastPathCheck)
	case len(o.nodePorts) > 1 && slices.Contains(o.nodePorts, netip.Prefix{}):
		return errors.New("--nodeport-addresses: primary and a prefix")
	}
	return cmp.Or(checkAddress("healthz", o.healthz), checkAddress("metrics", o.metrics), checkPools(o.pools),
		o.nodes.check())
}

const maxPoolBits = 16 // the addresses of a pool differ in so many bits at most

func checkPools(pools []netip.Prefix) error {
	for i, p := range pools {
		addr, why := p.Addr(), ""
		switch {
		case p != p.Masked():
			why = fmt.Sprintf("it has host bits: want %s", p.Masked())
		case !addr.IsGlobalUnicast() || addr.Is4In6():
			why = "not unicast addresses"
		case addr.BitLen()-p.Bits() > maxPoolBits:
			why = fmt.Sprintf("larger than /%d", addr.BitLen()-maxPoolBits)
		}
		if why != "" {
			return fmt.Errorf("--lb-pool %q: %s", p, why)
		}
		if at := slices.IndexFunc(pools[:i], p.Overlaps); at >= 0 {
			return fmt.Errorf("--lb-pool: %s and %s overlap", pools[at], p)
		}
	}
	return nil
}

func parseNodePorts(text string) (netip.Prefix, error) {
	if text == "primary" {
		return netip.Prefix{}, nil
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

func (c *config) runAgent(ctx context.Context, o agentOptions) (err error) {
	primary := slices.Contains(o.nodePorts, netip.Prefix{})
	if primary {
		o.nodePorts = nil
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
	lock, err := status.Claim(ctx, o.runDir)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	socket := cmp.Or(o.cniSocket, server.DefaultSocket)
	used, err := server.InUse(socket)
	if used {
		err = fmt.Errorf("another agent serves at %s, with another --run-dir", socket)
	}
	if err != nil {
		return fmt.Errorf("--cni-socket: %w", err)
	}
	if err := o.nodes.prepare(o.cniSocket, o.runDir); err != nil {
		return err
	}
	state := status.NewTracker()
	state.Tell(traffic.Collector{Root: c.BPFRoot})
	if err := mountBPF(c.BPFRoot); err != nil {
		return err
	}
	debug.SetGCPercent(collectAt)
	checks := health.New()
	defer func() { err = errors.Join(err, checks.Close()) }()
	log := slog.New(slog.NewTextHandler(c.Stderr, nil))
	kube.LogTo(log)
	return cli.WithNamespace(o.netns, func(ns *netns.Namespace) error {
		o.nodes.options.Host, o.nodes.options.Reserved = ns, client.Addresses
		return c.OnDatapath(ctx, func(d *datapath.Datapath) error {
			o.nodes.options.Remotes = node.Remotes(ctx, d)
			network, announcer := nodenet.New(o.nodes.options), announce.New(ns)
			defer announcer.Close()
			state.TellLate(network.WithoutHandshake)
			all, ctx := errgroup.WithContext(ctx)
			all.Go(func() error { return serveAt(ctx, "healthz", o.healthz, state.Probes()) })
			all.Go(func() error { return serveAt(ctx, "metrics", o.metrics, state.Metrics()) })
			services := d.Services()
			room, err := services.Room()
			if err != nil {
				return err
			}
			a := agent.New(agent.Options{
				Node: o.node, Cluster: client, Services: services, Room: room, NamespaceQuota: o.quota, Policies: d.Policies(),
				Health: checks,
				Access: agent.Host{Datapath: d, Namespace: ns, Cgroup: o.cgroup, Uplinks: o.uplinks, Ranges: o.nodePorts,
					Primary: primary, Forward: func(addresses []netip.Addr) error { return cni.EnableForwarding(ns, addresses) }},
				Nodes: network, Attacher: &o.nodes, Key: o.nodes.key, State: state, Log: log, Pools: o.pools, Announcer: announcer,
				Paths: agent.Paths{Host: ns, Every: o.pathCheck}, Endpoints: d.Endpoints(), Warnings: o.nodes.warnings(network),
				Config: status.Config{Node: o.node, Version: version.Program(), PID: os.Getpid(), Link: o.nodes.pods.Link,
					Services: o.nodes.pods.Services, Routing: string(o.nodes.options.Routing)},
			})
			network.ClusterIPs = a.ClusterIPs
			all.Go(func() error {
				return c.serveCNI(ctx, a, server.Options{Socket: o.cniSocket, Host: ns, Observe: state.Verb, Log: log})
			})
			all.Go(func() error {
				// A failure of the status socket does not stop Services.
				if err := status.ServeSocket(ctx, o.runDir, node.Handler(a.Report, state.Metrics())); err != nil {
					log.Error("mustang agent status gets no answer", "error", err)
				}
				return nil
			})
			all.Go(func() error { return a.Run(ctx) })
			return all.Wait()
		})
	})
}

// checkAddress refuses text that is not an address and port to listen at. Listening decides whether the node has it.
func checkAddress(of, text string) error {
	_, port, _ := net.SplitHostPort(text)
	if _, err := strconv.ParseUint(port, 10, 16); err != nil && text != "" {
		return fmt.Errorf("--%s-address %q: want an address and port like 127.0.0.1:10249", of, text)
	}
	return nil
}

// findCgroup returns the path of the control group of a flag; "" for nothing.
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

func serveAt(ctx context.Context, flag, address string, handler http.Handler) error {
	if address == "" {
		return nil
	}
	err := status.Serve(ctx, address, handler)
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w: if kube-proxy runs here, see docs/replace-kube-proxy.md", err)
	}
	if err != nil {
		return fmt.Errorf("--%s-address=%s: %w", flag, address, err)
	}
	return nil
}

// serveCNI attaches and detaches pods for the CNI plugin, which does it itself without a socket.
func (c *config) serveCNI(ctx context.Context, a *agent.Agent, o server.Options) error {
	if o.Socket == nothing {
		return nil
	}
	o.Plugin = cni.Plugin{
		StateDir: c.Getenv("MUSTANG_CNI_STATE_DIR"), RunDir: c.Getenv("MUSTANG_CNI_RUN_DIR"), BPFRoot: c.BPFRoot,
		Cgroup: c.Getenv("MUSTANG_CNI_CGROUP"), Await: a.AwaitPod,
	}
	s, err := server.Listen(o)
	if err != nil {
		o.Log.Error("pods whose configuration waits for the agent cannot be attached", "error", err)
		return nil
	}
	return s.Run(ctx)
}

// mountBPF mounts the BPF file system at its standard place if pins go there. Nodes without systemd lack the mount.
func mountBPF(root string) error {
	standard := filepath.Dir(objects.DefaultRoot)
	var stat unix.Statfs_t
	if !strings.HasPrefix(root, standard+"/") || unix.Statfs(standard, &stat) != nil || stat.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", standard, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount the BPF file system at %s: %w", standard, err)
	}
	return nil
}
