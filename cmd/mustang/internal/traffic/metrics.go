// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/service"
)

func metricsCommand(config *cli.Config) *cobra.Command {
	var listen, file string
	var services uint
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "Export metrics for Prometheus",
		Long: `Print what Prometheus reads of the datapath: drops by reason, packets, connections by state, services and
pods. --textfile replaces a file atomically, for node_exporter's textfile collector. --listen answers
at /metrics until Ctrl-C; ":PORT" is at 127.0.0.1. An agent has the same among its own metrics (agent
--metrics-address).`,
		Example: `  mustang metrics
  mustang metrics --textfile /var/lib/prometheus/node-exporter/mustang.prom
  mustang metrics --listen 127.0.0.1:9763 --services 20`,
		PreRunE: cli.Check(func([]string) error {
			if listen != "" && file != "" {
				return errors.New("--listen and --textfile: want one of them")
			}
			return nil
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			registry := prometheus.NewRegistry()
			registry.MustRegister(Collector{Root: config.BPFRoot, Services: services})
			switch {
			case listen != "":
				return serve(ctx, config, listen, registry)
			case file != "":
				return writeTextfile(file, registry)
			}
			families, err := registry.Gather()
			if err != nil {
				return cause(err)
			}
			for _, f := range families {
				if _, err := expfmt.MetricFamilyToText(config.Stdout, f); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&listen, "listen", "", "answer at this address and port, as 127.0.0.1:9763")
	cmd.Flags().StringVar(&file, "textfile", "", "write to this file, which is replaced atomically")
	cmd.Flags().UintVar(&services, "services", 0,
		"label the `N` services with the most connections or packets; the rest are 'other'")
	return cmd
}

// cause returns the first error of a collector or of the system, without the prefix of a library.
func cause(err error) error {
	if several, ok := errors.AsType[prometheus.MultiError](err); ok && len(several) > 0 {
		err = several[0]
	}
	return cmp.Or(errors.Unwrap(err), err)
}

// writeTextfile replaces or creates a regular file. Replacing another, such as a device, would remove it.
func writeTextfile(path string, registry *prometheus.Registry) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		err = errors.New("not a regular file")
	case err == nil || errors.Is(err, fs.ErrNotExist):
		err = prometheus.WriteToTextfile(path, registry)
	}
	if err != nil {
		return fmt.Errorf("--textfile %s: %w", path, cause(err))
	}
	return nil
}

func serve(ctx context.Context, config *cli.Config, address string, registry *prometheus.Registry) error {
	if strings.HasPrefix(address, ":") {
		address = "127.0.0.1" + address
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--listen=%s: %w", address, err)
	}
	fmt.Fprintf(config.Stderr, "mustang: http://%s/metrics; Ctrl-C ends\n", listener.Addr())
	// With a time-out answers are buffered: a slow client does not block others.
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 2, Timeout: 10 * time.Second})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	return status.ServeAt(ctx, listener, mux)
}

// Collector reads a datapath at each scrape, without a lock.
type Collector struct {
	Root string // where the datapath is pinned; empty: the default
	// Services is the number of services with metrics of their own: those with the most connections or packets.
	Services uint
}

// family is a metric, and the counters that are its values: the value of its label by the name of the counter.
type family struct {
	name, help, label string
	of                map[string]string
}

// families returns all counters of programs except drops for Prometheus. Counters of one name can be added up.
func families() []family {
	return []family{
		{"program_runs_total", "Runs of the packet programs.", "program", map[string]string{
			"from_pod": "from_pod", "to_pod": "to_pod", "from_uplink": "from_uplink", "to_uplink": "to_uplink", "guard": "guard",
			"outer_guard": "outer_guard",
		}},
		{"translated_packets_total", "Packets of connections to services that were translated: to the backend, or back.",
			"direction", map[string]string{"forward": "forward", "reverse": "reverse"}},
		{"delivered_packets_total", "Packets by where a program sent them; stack: to the kernel, or the next program.", "way",
			map[string]string{
				"redirect_peer": "peer", "redirect_device": "device", "l2_delivered": "segment", "hairpin": "self",
				"redirect_routed": "next_hop", "delivered": "finished", "passed": "stack",
			}},
		{"connections_made_total", "Connections that got rows: to services, and direct ones of pods that a policy selects.",
			"kind", map[string]string{"new_connection": "service", "tracked": "direct"}},
		{"connections_kept_total", "Repeated SYNs of connections.", "", map[string]string{"kept_connection": ""}},
		{"connections_port_changed_total", "Connections that got another source port, as theirs was taken.", "",
			map[string]string{"port_changed": ""}},
		{"slots_taken_over_total", "Slots of connections that were taken over or freed, by what their connection was.",
			"connection", map[string]string{"slot_reused": "closed", "slot_expired": "expired"}},
		{"icmp_packets_total", "ICMP errors that were translated, and echo requests to services that were answered.", "kind",
			map[string]string{"icmp_error": "error", "icmp_echo": "echo"}},
		{"tunnel_packets_total", "Packets of direct server return that went into a tunnel, or out of one.", "direction",
			map[string]string{"encapsulated": "in", "decapsulated": "out"}},
		{"remote_packets_total", "Packets of pods to and from pods of other nodes that bypassed the stack of the host.",
			"direction", map[string]string{"to_remote": "out", "from_remote": "in"}},
		{"fragments_unknown_total", "Later fragments that came without their first, and were not translated.", "",
			map[string]string{"unknown_fragment": ""}},
		{"socket_calls_total", "Calls of sockets in which an address was translated.", "call", map[string]string{
			"sock_connect": "connect", "sock_sendmsg": "sendmsg", "sock_recvmsg": "recvmsg", "sock_getpeername": "getpeername",
		}},
		{"sockets_ended_total", "Connected sockets that were ended, as their backend was removed.", "",
			map[string]string{"sock_destroy": ""}},
		{"policy_audited_total", "Connections that policies deny, and that passed as they are audited only.", "",
			map[string]string{"audited": ""}},
		{"monitor_left_out_total", "Events that mustang monitor did not get, as too many came at once.", "",
			map[string]string{"event_left_out": ""}},
	}
}

type sink chan<- prometheus.Metric

// send sends a counter if the name ends with _total, else a gauge. A label is two texts: its name and its value.
func (to sink) send(name, help string, value float64, label ...string) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	var names, values []string
	for pair := range slices.Chunk(label, 2) {
		names, values = append(names, pair[0]), append(values, pair[1])
	}
	desc := prometheus.NewDesc("mustang_datapath_"+name, help, names, nil)
	to <- prometheus.MustNewConstMetric(desc, kind, value, values...)
}

// Describe sends nothing, as prometheus.Collector allows: Collect decides the metrics.
func (c Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c Collector) Collect(to chan<- prometheus.Metric) {
	d, err := datapath.OpenExisting(datapath.Options{Root: c.Root})
	up := 0.0
	if err == nil {
		up = 1
		err = errors.Join(counters(to, d), c.connections(to, d), c.services(to, d), d.Close())
	}
	sink(to).send("up", "Whether there is a datapath.", up)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		to <- prometheus.NewInvalidMetric(prometheus.NewDesc("mustang_datapath_up", "", nil, nil), err)
	}
}

func counters(to sink, d *datapath.Datapath) error {
	all, err := d.Flows().Counters()
	count := map[string]float64{}
	drops := flows.Drops()[1:]
	for _, c := range all {
		count[c.Name] = float64(c.Packets)
		if c.Drop {
			to.send("dropped_packets_total", "Packets that were dropped, and calls of sockets that were refused, by reason.",
				count[c.Name], "reason", drops[0][0])
			drops = drops[1:]
		}
	}
	for _, f := range families() {
		for counter, value := range f.of {
			var label []string
			if f.label != "" {
				label = []string{f.label, value}
			}
			to.send(f.name, f.help, count[counter], label...)
		}
	}
	return err
}

func (c Collector) connections(to sink, d *datapath.Datapath) error {
	table := d.ConnectionTable()
	stats, err := table.Stats()
	if err != nil {
		return err
	}
	states := map[string]int{"expired": stats.Expired, "void": stats.Void}
	for state := flows.StateSYN; state <= flows.StateReplied; state++ {
		states[state.String()] = stats.States[state]
	}
	for state, n := range states {
		to.send("connections", "Connections in the table, by state.", float64(n), "state", state)
	}
	to.send("connection_slots", "Slots of the connection table.", float64(stats.Slots))
	to.send("client_share", "Open connections from which on a client gets no new one.", float64(stats.Share))
	if c.Services == 0 {
		return nil
	}
	list, err := table.List(flows.Filter{})
	services, count := busiest(list)
	names := map[string]int{"other": 0}
	for i, key := range services {
		name := "other"
		if uint(i) < c.Services {
			name = key.String()
		}
		names[name] += count[key]
	}
	for name, n := range names {
		to.send("service_connections", "Connections in the table of the services that have the most.", float64(n),
			"service", name)
	}
	return err
}

// busiest returns the services of connections, in descending order of connections, and the numbers of connections.
func busiest(list []flows.Connection) ([]service.Key, map[service.Key]int) {
	count := map[service.Key]int{}
	for _, c := range list {
		if c.Service.IsValid() {
			count[service.Key{Frontend: c.Service, Protocol: c.Protocol}]++
		}
	}
	return slices.SortedFunc(maps.Keys(count), func(a, b service.Key) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a.String(), b.String()))
	}), count
}

// services counts services and pods, and the packets of the busiest services without "other", a sum that could shrink.
func (c Collector) services(to sink, d *datapath.Datapath) error {
	count, err := d.Services().Count()
	if err != nil {
		return err
	}
	endpoints, err := d.Endpoints().List(context.Background())
	if err != nil {
		return err
	}
	pods := map[uint32]bool{}
	for _, e := range endpoints {
		pods[e.ID] = true
	}
	to.send("services", "Addresses, ports and protocols that are served.", float64(count))
	to.send("endpoints", "Pods that are endpoints.", float64(len(pods)))
	if c.Services == 0 {
		return nil
	}
	traffic, err := d.Flows().ServiceTraffic()
	if err != nil {
		return err
	}
	services, err := d.Services().List(context.Background())
	sum := func(s service.Service) uint64 { return traffic[s.ID].To.Packets + traffic[s.ID].Back.Packets }
	services = slices.DeleteFunc(services, func(s service.Service) bool { return sum(s) == 0 })
	slices.SortStableFunc(services, func(a, b service.Service) int { return cmp.Compare(sum(b), sum(a)) })
	for _, s := range services[:min(len(services), int(c.Services))] {
		for direction, t := range map[string]datapath.Traffic{"forward": traffic[s.ID].To, "reverse": traffic[s.ID].Back} {
			label := []string{"service", s.Key().String(), "direction", direction}
			to.send("service_packets_total", "Packets that were translated of the services that have had the most.",
				float64(t.Packets), label...)
			to.send("service_bytes_total", "Bytes of the frames that were translated of these services.", float64(t.Bytes),
				label...)
		}
	}
	return err
}
