// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/service"
)

type commands struct{ *cli.Config }

func (c commands) svcAdd() *cobra.Command {
	var f serviceFlags
	cmd := &cobra.Command{
		Use:   "add ADDRESS:PORT --backend ADDRESS:PORT [--backend ...]",
		Short: "Add a service, or replace one",
		Long: `Add a service with exactly the given settings and backends. An existing service is replaced;
open TCP connections keep their backend.`,
		Example: `  mustang svc add 10.96.0.100:5201 --backend=192.168.10.10:5201
  mustang svc add --service='[fd00:96::100]:5201' --backend='[fd00:10::a]:5201' --protocol=tcp
  mustang svc add --service=0.0.0.0:30080 --node-port --backend=192.168.10.10:80,weight=2 --backend=192.168.10.11:80`,
		Args:    cli.Arguments("[ADDRESS:PORT]"),
		PreRunE: cli.Check(func(args []string) error { return cmp.Or(named(args, &f.Frontend), f.check()) }),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			return c.OnDatapath(ctx, func(d *datapath.Datapath) error {
				change, _, err := d.Services().Put(ctx, service.CLI, f.Service)
				if err != nil {
					return hintOwner(err)
				}
				return c.Printf("service %s %s\n", f.Service, change)
			})
		}),
	}
	f.add(cmd)
	return cmd
}

// named reads the address of a service from the argument, unless a flag had it.
func named(args []string, frontend *netip.AddrPort) (err error) {
	if frontend.IsValid() == (len(args) > 0) {
		return errors.New("name the service by its ADDRESS:PORT, or by --service")
	}
	if len(args) > 0 {
		*frontend, err = service.ParseFrontend(args[0])
	}
	return err
}

func (c commands) svcRemove() *cobra.Command {
	var key service.Key
	cmd := &cobra.Command{
		Use:     "rm ADDRESS:PORT",
		Short:   "Remove a service",
		Example: "  mustang svc rm 10.96.0.100:5201\n  mustang svc rm --service=10.96.0.100:5201 --protocol=udp",
		Args:    cli.Arguments("[ADDRESS:PORT]"),
		PreRunE: cli.Check(func(args []string) error { return named(args, &key.Frontend) }),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			return c.OnExisting(ctx, fmt.Errorf("service %s does not exist", key), func(d *datapath.Datapath) error {
				if err := d.Services().Delete(ctx, service.CLI, key); err != nil {
					return hintOwner(err)
				}
				if key.Protocol == service.Any {
					return c.Printf("service %s removed\n", key.Frontend)
				}
				return c.Printf("service %s removed\n", key)
			})
		}),
	}
	cmd.Flags().Var(cli.One(&key.Frontend, service.ParseFrontend, ""), "service",
		"address and port that clients connect to")
	cli.CompleteFlag(cmd, "service", c.frontends)
	cmd.ValidArgsFunction = cli.Word(c.frontends)
	cmd.Flags().Var(protocolFlag(&key.Protocol), "protocol", "tcp, udp, sctp, or any for all protocols of the service")
	return cmd
}

func hintOwner(err error) error {
	conflict, ok := errors.AsType[*datapath.ConflictError](err)
	switch {
	case ok && conflict.Owner == service.Agent:
		return fmt.Errorf("%w: it comes from a Service of the cluster: change that with kubectl", err)
	case ok && conflict.Owner == service.CNI:
		return fmt.Errorf("%w: it is the host port of a pod, and goes with the pod", err)
	}
	return err
}

func (c commands) frontends() (all []string) {
	_ = c.Existing(nil, func(d *datapath.Datapath) error { // a user who may not read them gets none
		services, err := d.Services().List(context.Background())
		for _, s := range services {
			if s.Owner == service.CLI {
				all = append(all, s.Frontend.String())
			}
		}
		return err
	})
	return all
}

type serviceJSON struct {
	ID       uint32   `json:"id"`
	Owner    string   `json:"owner"`
	Name     string   `json:"name,omitzero"` // namespace/name of the Service in the cluster
	Protocol string   `json:"protocol"`
	Service  string   `json:"service"`
	Port     uint16   `json:"port"`
	Backends []string `json:"backends"`
	State    string   `json:"state"`
	// Connections are the open ones with translated packets, and Traffic counts these packets; nil: not counted.
	Connections int          `json:"connections"`
	Traffic     *trafficJSON `json:"traffic,omitzero"`

	Choice          service.Choice   `json:"choice,omitzero"`
	AffinitySeconds int              `json:"affinity_seconds,omitzero"`
	InternalPolicy  service.Policy   `json:"internal_policy,omitzero"`
	ExternalPolicy  service.Policy   `json:"external_policy,omitzero"`
	NodePort        bool             `json:"node_port,omitzero"`
	External        bool             `json:"external,omitzero"`
	DSR             service.DSR      `json:"dsr,omitzero"`
	SourceRanges    []netip.Prefix   `json:"source_ranges,omitempty"`
	HealthCheckPort uint16           `json:"health_check_port,omitzero"`
	OnRemove        service.OnRemove `json:"on_remove,omitzero"`

	stored service.Service
}

type trafficJSON struct {
	ToPackets   uint64 `json:"to_packets"`
	ToBytes     uint64 `json:"to_bytes"`
	BackPackets uint64 `json:"back_packets"`
	BackBytes   uint64 `json:"back_bytes"`
}

func (c commands) svcList() *cobra.Command {
	var runDir string
	cmd := &cobra.Command{
		Use: "ls", Short: "List services",
		Long: `List services. OWNER made a service and alone changes it: cli is svc add and svc apply, agent the
agent of a cluster's node. NAME is NAMESPACE/NAME of the Service in the cluster, if the agent runs.
Clients connect to ADDRESS and PORT. STATE is ready, terminating (new connections get a terminating
backend), or no-backend. CONNECTIONS counts open connections. PACKETS counts both directions since the
service was made; -o json has each direction, and bytes. Both columns omit connections translated at
sockets. SETTINGS lists settings other than the default. BACKENDS shows a state other than active, a
weight other than 1, and local for a backend on this node.

States of a backend: active gets new connections. terminating is about to end, and gets new ones only
where no backend is active. draining is about to end, and gets none. quarantined is not ready, as it
has failed its health check. Open connections stay with their backend in each state.`,
	}
	AddRunDir(cmd.Flags(), &runDir)
	return cli.Listing(cmd, func(format string) error {
		list, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]serviceJSON, error) {
			return listServices(cmd.Context(), d)
		})
		if err != nil {
			return err
		}
		ofAgent := func(s serviceJSON) bool { return s.stored.Owner == service.Agent }
		var names map[string]string
		if slices.ContainsFunc(list, ofAgent) {
			if names, err = serviceNames(cmd.Context(), runDir); err != nil {
				fmt.Fprintf(c.Stderr, "mustang: note: no names of the agent's services: %v\n", err)
			}
		}
		hidden := []string{"NAME"}
		for i := range list {
			if s := &list[i]; ofAgent(*s) && len(names) > 0 {
				s.Name, hidden = names[s.stored.Key().String()], nil
			}
		}
		return cli.PrintList(c.Stdout, format, list, cli.Table[serviceJSON]{
			Key: "services",
			Header: []string{"ID", "OWNER", "NAME", "PROTOCOL", "ADDRESS", "PORT", "STATE", "CONNECTIONS", "PACKETS", "SETTINGS",
				"BACKENDS"},
			Wide: hidden,
			Row: func(s serviceJSON) []any {
				packets := ""
				if t := s.Traffic; t != nil {
					packets = strconv.FormatUint(t.ToPackets+t.BackPackets, 10)
				}
				return []any{s.ID, s.Owner, s.Name, s.Protocol, s.Service, s.Port, s.State, s.Connections, packets,
					settings(s.stored), shortened(s.Backends)}
			},
		})
	})
}

func listServices(ctx context.Context, d *datapath.Datapath) (list []serviceJSON, err error) {
	open, _, openErr := connectionsByService(d, 0)
	traffic, trafficErr := d.Flows().ServiceTraffic()
	services, err := d.Services().List(ctx)
	if err := errors.Join(openErr, trafficErr, err); err != nil {
		return nil, err
	}
	for _, s := range services {
		state := "terminating"
		switch serving := s.Sorted().Serving(); {
		case len(serving) == 0:
			state = "no-backend"
		case serving[0].State == service.Active:
			state = "ready"
		}
		item := serviceJSON{
			ID: s.ID, Owner: s.Owner.String(), Protocol: s.Protocol.String(), Service: s.Frontend.Addr().String(),
			Port: s.Frontend.Port(), Backends: texts(s.Backends), State: state, Connections: open[s.ID], Choice: s.Choice,
			AffinitySeconds: int(s.Affinity / time.Second), InternalPolicy: s.InternalPolicy, ExternalPolicy: s.ExternalPolicy,
			NodePort: s.NodePort, External: s.External, DSR: s.DSR, SourceRanges: s.SourceRanges,
			HealthCheckPort: s.HealthCheckPort, OnRemove: s.OnRemove, stored: s,
		}
		if t, ok := traffic[s.ID]; ok {
			item.Traffic = &trafficJSON{t.To.Packets, t.To.Bytes, t.Back.Packets, t.Back.Bytes}
		}
		list = append(list, item)
	}
	return list, nil
}

func connectionsByService(d *datapath.Datapath, age time.Duration) (open, young map[uint32]int, err error) {
	connections, err := d.ConnectionTable().List(flows.Filter{})
	open, young = map[uint32]int{}, map[uint32]int{}
	for _, c := range connections {
		if c.State != flows.StateClosed {
			open[c.ServiceID]++
		}
		if c.Age <= age {
			young[c.ServiceID]++
		}
	}
	return open, young, err
}

// shortened joins at most four words for a table: a service can have hundreds.
func shortened(texts []string) string {
	const most = 4
	if len(texts) > most {
		texts = append(slices.Clone(texts[:most-1]), fmt.Sprintf("and %d more", len(texts)-most+1))
	}
	return strings.Join(texts, " ")
}

func texts[T fmt.Stringer](list []T) []string {
	all := make([]string, 0, len(list))
	for _, item := range list {
		all = append(all, item.String())
	}
	return all
}

type serviceFlags struct {
	service.Service
	noBackends bool
}

func (f *serviceFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(cli.One(&f.Frontend, service.ParseFrontend, ""), "service", "address and port that clients connect to")
	flags.Var(cli.Each(&f.Backends, parseBackend, ""), "backend",
		"address and port of a backend, and if need be its state, "+
			"its weight, and local if it is on this node: 192.168.10.10:80,draining,weight=2,local; repeat for more")
	flags.BoolVar(&f.noBackends, "no-backends", false, "refuse all clients")
	flags.Var(protocolFlag(&f.Protocol), "protocol", "tcp, udp, sctp, or any for tcp and udp")
	flags.TextVar(&f.Choice, "choice", service.Random, "how a backend is chosen for a new connection: `random|maglev`")
	flags.Var(cli.One(&f.Affinity, parseSeconds, "a duration such as 10ms or 2m"), "affinity",
		"how long a client keeps its backend after its last connection, in seconds or as 2m, at most 24h; 0: none")
	flags.Lookup("affinity").DefValue = "0"
	flags.TextVar(&f.InternalPolicy, "internal-policy", service.Cluster,
		"backends of clients in the cluster: all, or only on their node: `cluster|local`")
	flags.TextVar(&f.ExternalPolicy, "external-policy", service.Cluster,
		"backends of clients outside: all, or only on the receiving node: `cluster|local`")
	flags.BoolVar(&f.NodePort, "node-port", false,
		"the service is a port of the node, of all its addresses if the address is 0.0.0.0 or ::; also for clients behind "+
			"an uplink")
	flags.BoolVar(&f.External, "external", false,
		"the address is an external or load-balancer address, also for clients behind an uplink")
	flags.TextVar(&f.DSR, "dsr", service.NoDSR,
		"how backends on other nodes answer clients outside, by this node or themselves: `none|ipip`; needs --node-port "+
			"or --external")
	flags.Var(cli.Each(&f.SourceRanges, netip.ParsePrefix, "an address and its length, as 10.0.0.0/8"), "source-range",
		"`PREFIX` of clients that are served, as 10.0.0.0/8; repeat for more")
	flags.Uint16Var(&f.HealthCheckPort, "health-check-port", 0,
		"port at which svc health answers load balancers: 200 with a backend on this node, else 503; needs "+
			"--external-policy=local")
	flags.TextVar(&f.OnRemove, "on-remove", service.Keep,
		"what happens to open TCP connections of a backend that is removed: `keep|reset`")
	cli.CompleteFlag(cmd, "protocol", cli.Fixed("tcp", "udp", "sctp", "any"))
	flags.VisitAll(func(flag *pflag.Flag) {
		if words, _ := pflag.UnquoteUsage(flag); strings.Contains(words, "|") {
			cli.CompleteFlag(cmd, flag.Name, cli.Fixed(strings.Split(words, "|")...))
		}
	})
}

func protocolFlag(to *service.Protocol) *cli.Parsed {
	flag := cli.One(to, service.ParseProtocol, "")
	_ = flag.Set(service.Any.String())
	return flag
}

func parseBackend(text string) (b service.Backend, err error) {
	return b, b.UnmarshalText([]byte(text))
}

func parseSeconds(text string) (time.Duration, error) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return time.ParseDuration(text)
}

func (f *serviceFlags) check() error {
	switch {
	case len(f.Backends) == 0 && !f.noBackends:
		return errors.New("--backend is missing; --no-backends refuses all clients")
	case len(f.Backends) > 0 && f.noBackends:
		return errors.New("--backend and --no-backends exclude each other")
	}
	return f.Validate()
}

func settings(s service.Service) string {
	var words []string
	add := func(set bool, word string, value ...any) {
		if set {
			words = append(words, fmt.Sprintf(word, value...))
		}
	}
	add(s.NodePort, "node-port")
	add(s.External, "external")
	add(s.DSR != service.NoDSR, "dsr=%s", s.DSR)
	add(s.Choice != service.Random, "choice=%s", s.Choice)
	add(s.Affinity != 0, "affinity=%ds", s.Affinity/time.Second)
	add(s.InternalPolicy != service.Cluster, "internal-policy=%s", s.InternalPolicy)
	add(s.ExternalPolicy != service.Cluster, "external-policy=%s", s.ExternalPolicy)
	add(s.HealthCheckPort != 0, "health-check-port=%d", s.HealthCheckPort)
	add(s.OnRemove != service.Keep, "on-remove=%s", s.OnRemove)
	add(len(s.SourceRanges) > 0, "source-range=%s", shortened(texts(s.SourceRanges)))
	return strings.Join(words, ",")
}
