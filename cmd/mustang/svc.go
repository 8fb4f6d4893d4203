// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

func (c *config) svc() *cobra.Command {
	return group("svc", "Services: addresses that stand for a set of backends", c.svcAdd(), c.svcList(), c.svcRemove(),
		c.svcApply(), c.svcDiff(), c.svcExport(), c.svcRestore())
}

// open opens the node's datapath, making it if it is not there yet, and completes what killed processes left.
func (c *config) open(ctx context.Context) (*datapath.Datapath, error) {
	d, err := datapath.Open(ctx, datapath.Options{Root: c.bpfRoot, Sizes: objects.Sizes{Connections: c.connections}})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.Recover(ctx), c.warn(d)); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// warn says what a command that changes something finds of the connection table.
func (c *config) warn(d *datapath.Datapath) error {
	warnings, err := d.ConnectionTable().Warnings(c.connections)
	if len(warnings) > 0 {
		fmt.Fprintf(c.stderr, "mustang: note: %s\n", strings.Join(warnings, "; "))
	}
	return err
}

// openExisting opens the node's datapath, or returns nil if there is none yet.
func (c *config) openExisting() (*datapath.Datapath, error) {
	d, err := datapath.OpenExisting(datapath.Options{Root: c.bpfRoot})
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return d, err
}

func (c *config) svcAdd() *cobra.Command {
	var f serviceFlags
	cmd := &cobra.Command{
		Use:   "add --service ADDRESS:PORT --backend ADDRESS:PORT [--backend ...]",
		Short: "Add a service, or replace one",
		Long: `Add a service with exactly the given settings and backends. An existing service is replaced;
open TCP connections keep their backend.`,
		Example: `  mustang svc add --service=10.96.0.100:5201 --backend=192.168.10.10:5201
  mustang svc add --service='[fd00:96::100]:5201' --backend='[fd00:10::a]:5201' --protocol=tcp
  mustang svc add --service=0.0.0.0:30080 --node-port --backend=192.168.10.10:80,weight=2 --backend=192.168.10.11:80`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := f.parse()
			if err != nil {
				return usage(err)
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			d, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer d.Close()
			if err := refusePods(cmd.Context(), d, s); err != nil {
				return err
			}
			change, id, err := d.Services().Put(cmd.Context(), service.CLI, s)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.stdout, "service %d %s\n", id, change)
			return err
		},
	}
	f.add(cmd)
	return cmd
}

func (c *config) svcRemove() *cobra.Command {
	var address, protocol string
	cmd := &cobra.Command{
		Use:     "rm --service ADDRESS:PORT",
		Short:   "Remove a service",
		Example: "  mustang svc rm --service=10.96.0.100:5201",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if address == "" {
				return usage(errors.New("--service is missing"))
			}
			frontend, err := service.ParseFrontend(address)
			if err != nil {
				return usage(err)
			}
			p, err := service.ParseProtocol(protocol)
			if err != nil {
				return usage(err)
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			key := service.Key{Frontend: frontend, Protocol: p}
			return c.onExisting(cmd.Context(), fmt.Errorf("service %s does not exist", key), func(d *datapath.Datapath) error {
				return d.Services().Delete(cmd.Context(), service.CLI, key)
			})
		},
	}
	cmd.Flags().StringVar(&address, "service", "", "address and port that clients connect to")
	cmd.Flags().StringVar(&protocol, "protocol", "any", "tcp, udp, or any for all protocols of the service")
	return cmd
}

// serviceJSON is a service as svc ls -o json prints it.
type serviceJSON struct {
	ID       uint32   `json:"id"`
	Owner    string   `json:"owner"`
	Protocol string   `json:"protocol"`
	Service  string   `json:"service"`
	Port     uint16   `json:"port"`
	Backends []string `json:"backends"`

	Choice          service.Choice   `json:"choice,omitzero"`
	AffinitySeconds int              `json:"affinity_seconds,omitzero"`
	InternalPolicy  service.Policy   `json:"internal_policy,omitzero"`
	ExternalPolicy  service.Policy   `json:"external_policy,omitzero"`
	NodePort        bool             `json:"node_port,omitzero"`
	External        bool             `json:"external,omitzero"`
	SourceRanges    []netip.Prefix   `json:"source_ranges,omitempty"`
	HealthCheckPort uint16           `json:"health_check_port,omitzero"`
	OnRemove        service.OnRemove `json:"on_remove,omitzero"`
}

func (c *config) svcList() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List services"}
	return listing(cmd, func(format string) error {
		services, err := read(c, func(d *datapath.Datapath) ([]service.Service, error) { return d.Services().List(cmd.Context()) })
		if err != nil {
			return err
		}
		return c.printServices(services, format)
	})
}

func (c *config) printServices(services []service.Service, format string) error {
	list := []serviceJSON{}
	var rows [][]string
	for _, s := range services {
		item := serviceJSON{
			ID: s.ID, Owner: s.Owner.String(), Protocol: s.Protocol.String(), Service: s.Frontend.Addr().String(), Port: s.Frontend.Port(),
			Backends: backendTexts(s.Backends), Choice: s.Choice, AffinitySeconds: int(s.Affinity / time.Second),
			InternalPolicy: s.InternalPolicy, ExternalPolicy: s.ExternalPolicy, NodePort: s.NodePort, External: s.External,
			SourceRanges: s.SourceRanges, HealthCheckPort: s.HealthCheckPort, OnRemove: s.OnRemove,
		}
		list = append(list, item)
		rows = append(rows, []string{
			strconv.FormatUint(uint64(item.ID), 10), item.Owner, item.Protocol, item.Service, strconv.Itoa(int(item.Port)),
			cmp.Or(settings(s), "-"), cmp.Or(strings.Join(item.Backends, " "), "-"),
		})
	}
	if format == "json" {
		return printJSON(c.stdout, struct {
			Schema   int           `json:"schema"`
			Services []serviceJSON `json:"services"`
		}{schema, list})
	}
	return printTable(c.stdout, []string{"ID", "OWNER", "PROTOCOL", "SERVICE", "PORT", "SETTINGS", "BACKENDS"}, rows)
}

func backendTexts(list []service.Backend) []string {
	texts := make([]string, 0, len(list))
	for _, b := range list {
		texts = append(texts, b.String())
	}
	return texts
}
