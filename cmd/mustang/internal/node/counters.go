// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
)

func (c commands) counters() *cobra.Command {
	var all bool
	var watch time.Duration
	var tables int
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Show packets by outcome, and drops by reason",
		Long: `Show what the programs did with packets, and why they dropped any, summed over all CPUs,
since the maps were created. The table leaves out counters of 0 unless --all is given; -o json has all.

With --watch it shows rates of each interval: of counters that changed, of pods' devices, and of
connections and translated packets of services.`,
		Example: "  mustang counters\n  mustang counters --watch\n  mustang counters --watch=10s --tables 6 -o json",
	}
	cmd.Flags().DurationVar(&watch, "watch", 0, "show rates, over intervals of this length (1s if none is given)")
	cmd.Flags().Lookup("watch").NoOptDefVal = "1s"
	cmd.Flags().IntVar(&tables, "tables", 0, "end after this number of intervals of --watch (default: at Ctrl-C)")
	cmd.Flags().BoolVar(&all, "all", false, "show counters of 0 too")
	return cli.Listing(cmd, func(format string) error {
		if cmd.Flags().Changed("watch") {
			return watcher{c, format, all}.run(cmd.Context(), watch, tables)
		}
		counters, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]flows.Counter, error) {
			return d.Flows().Counters()
		})
		if err != nil {
			return err
		}
		if format != "json" && !all {
			counters = slices.DeleteFunc(counters, func(c flows.Counter) bool { return c.Packets == 0 })
		}
		return cli.PrintList(c.Stdout, format, counters, cli.Table[flows.Counter]{
			Key:    "counters",
			Header: []string{"COUNTER", "DROP", "PACKETS", "MEANING"},
			Row:    func(c flows.Counter) []any { return []any{c.Name, c.Drop, c.Packets, c.Meaning} },
		})
	})
}

const shortestWatch = 100 * time.Millisecond // reading takes a part of it

type watcher struct {
	commands
	format string
	all    bool // also counters that did not change
}

type sample struct {
	at       time.Time
	counters []flows.Counter
	pods     []endpointJSON // one of each device
	services []serviceRate
	traffic  map[uint32]flows.ServiceTraffic
}

type rates struct {
	Schema   int           `json:"schema"`
	Time     time.Time     `json:"time"`
	Seconds  float64       `json:"seconds"`
	Counters []counterRate `json:"counters"`
	Pods     []podRate     `json:"pods"`
	Services []serviceRate `json:"services"`
}

type counterRate struct {
	flows.Counter
	PerSecond float64 `json:"packets_per_second"`
}

type podRate struct {
	Endpoint        uint32  `json:"endpoint"`
	Namespace       string  `json:"namespace"`
	Pod             string  `json:"pod"`
	SentPackets     float64 `json:"sent_packets_per_second"`
	SentBits        float64 `json:"sent_bits_per_second"`
	ReceivedPackets float64 `json:"received_packets_per_second"`
	ReceivedBits    float64 `json:"received_bits_per_second"`
}

type serviceRate struct {
	ID       uint32 `json:"id"`
	Service  string `json:"service"`
	Protocol string `json:"protocol"`
	// Open counts the connections whose packets are translated, New the ones opened since the interval began.
	Open int `json:"open_connections"`
	New  int `json:"new_connections"`
	// To counts traffic translated to the backends, Back traffic from the backends; nil: not counted.
	To   *flowRate `json:"to,omitzero"`
	Back *flowRate `json:"back,omitzero"`
}

type flowRate struct {
	Packets float64 `json:"packets_per_second"`
	Bits    float64 `json:"bits_per_second"`
}

// run prints the rates of intervals until the context ends, or of as many as tables if it is not 0.
func (w watcher) run(ctx context.Context, interval time.Duration, tables int) error {
	if interval < shortestWatch || tables < 0 {
		return cli.Usage(fmt.Errorf("--watch %s, --tables %d: want %s or more, and 0 or more", interval, tables,
			shortestWatch))
	}
	none := errors.New("the datapath does not exist yet: begin with mustang ep add or svc add")
	return w.Existing(none, func(d *datapath.Datapath) error {
		before, err := take(ctx, d, interval)
		ticks := time.NewTicker(interval)
		defer ticks.Stop()
		for n := 0; err == nil && (tables == 0 || n < tables); n++ {
			select {
			case <-ctx.Done():
				return nil
			case <-ticks.C:
			}
			var now sample
			if now, err = take(ctx, d, interval); err == nil {
				err = w.print(now.since(before), n > 0)
			}
			before = now
		}
		return err
	})
}

// take reads the current state. New connections are younger than the interval.
func take(ctx context.Context, d *datapath.Datapath, interval time.Duration) (s sample, err error) {
	s.at = time.Now()
	var countersErr, podsErr, trafficErr error
	s.counters, countersErr = d.Flows().Counters()
	s.pods, podsErr = listEndpoints(ctx, d)
	s.pods = slices.CompactFunc(s.pods, func(a, b endpointJSON) bool { return a.ID == b.ID })
	services, servicesErr := d.Services().List(ctx)
	open, young, connectionsErr := connectionsByService(d, interval)
	for _, each := range services {
		s.services = append(s.services, serviceRate{
			ID: each.ID, Service: each.Frontend.String(), Protocol: each.Protocol.String(), Open: open[each.ID],
			New: young[each.ID],
		})
	}
	s.traffic, trafficErr = d.Flows().ServiceTraffic()
	return s, errors.Join(countersErr, podsErr, servicesErr, connectionsErr, trafficErr)
}

func (s sample) since(earlier sample) rates {
	seconds := s.at.Sub(earlier.at).Seconds()
	out := rates{Schema: cli.Schema, Time: s.at.UTC(), Seconds: seconds, Counters: []counterRate{}, Pods: []podRate{},
		Services: []serviceRate{}}
	per := func(now, before uint64) float64 {
		if now < before { // of a device that was made anew
			before = 0
		}
		return float64(now-before) / seconds
	}
	for i, c := range s.counters {
		out.Counters = append(out.Counters, counterRate{c, per(c.Packets, earlier.counters[i].Packets)})
	}
	flow := func(now, before datapath.Traffic) *flowRate {
		return &flowRate{per(now.Packets, before.Packets), 8 * per(now.Bytes, before.Bytes)}
	}
	for _, p := range s.pods {
		for _, e := range earlier.pods {
			if e.ID == p.ID {
				sent, received := flow(p.sent, e.sent), flow(p.received, e.received)
				out.Pods = append(out.Pods, podRate{p.ID, p.Namespace, p.Pod, sent.Packets, sent.Bits, received.Packets,
					received.Bits})
			}
		}
	}
	for _, each := range s.services {
		if now, ok := s.traffic[each.ID]; ok {
			before := earlier.traffic[each.ID]
			each.To, each.Back = flow(now.To, before.To), flow(now.Back, before.Back)
		}
		out.Services = append(out.Services, each)
	}
	return out
}

func (w watcher) print(r rates, before bool) error {
	if w.format == "json" {
		return json.NewEncoder(w.Stdout).Encode(r)
	}
	if before {
		fmt.Fprintln(w.Stdout)
	}
	var counters, pods, services [][]any
	for _, c := range r.Counters {
		if w.all || c.PerSecond > 0 {
			counters = append(counters, []any{c.Name, c.Drop, c.Packets, rate(c.PerSecond)})
		}
	}
	for _, p := range r.Pods {
		pods = append(pods, []any{
			p.Namespace + "/" + p.Pod, rate(p.SentPackets), rate(p.SentBits / 1e6), rate(p.ReceivedPackets),
			rate(p.ReceivedBits / 1e6),
		})
	}
	for _, s := range r.Services {
		row := []any{s.Service + "/" + s.Protocol, s.Open, s.New, "", "", "", ""}
		if s.To != nil {
			row = append(row[:3], rate(s.To.Packets), rate(s.To.Bits/1e6), rate(s.Back.Packets), rate(s.Back.Bits/1e6))
		}
		services = append(services, row)
	}
	return errors.Join(
		cli.PrintTable(w.Stdout, []string{"COUNTER", "DROP", "PACKETS", "PACKETS/S"}, counters),
		cli.PrintTable(w.Stdout, []string{"POD", "SENT PACKETS/S", "SENT MBIT/S", "RECEIVED PACKETS/S", "RECEIVED MBIT/S"},
			pods),
		cli.PrintTable(w.Stdout, []string{"SERVICE", "OPEN", "NEW", "TO PACKETS/S", "TO MBIT/S", "BACK PACKETS/S",
			"BACK MBIT/S"}, services),
	)
}

func rate(r float64) string {
	if r >= 100 {
		return fmt.Sprintf("%.0f", r)
	}
	return fmt.Sprintf("%.1f", r)
}
