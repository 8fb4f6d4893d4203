// SPDX-License-Identifier: Apache-2.0

// Package svc is the command svc: services on the command line, one by one or as a set from a file.
package svc

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/service"
)

// commands are those on services.
type commands struct{ *cli.Config }

// Command returns the command svc.
func Command(config *cli.Config) *cobra.Command {
	c := commands{config}
	return cli.Group("svc", "Services: addresses that stand for a set of backends", c.svcAdd(), c.svcList(), c.svcRemove(),
		c.svcApply(), c.svcDiff(), c.svcExport(), c.svcRestore(), c.svcHealth())
}

func (c commands) svcAdd() *cobra.Command {
	var f serviceFlags
	cmd := &cobra.Command{
		Use:   "add --service ADDRESS:PORT --backend ADDRESS:PORT [--backend ...]",
		Short: "Add a service, or replace one",
		Long: `Add a service with exactly the given settings and backends. An existing service is replaced;
open TCP connections keep their backend.`,
		Example: `  mustang svc add --service=10.96.0.100:5201 --backend=192.168.10.10:5201
  mustang svc add --service='[fd00:96::100]:5201' --backend='[fd00:10::a]:5201' --protocol=tcp
  mustang svc add --service=0.0.0.0:30080 --node-port --backend=192.168.10.10:80,weight=2 --backend=192.168.10.11:80`,
		Args: cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := f.parse()
			if err != nil {
				return cli.Usage(err)
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			return c.OnDatapath(cmd.Context(), func(d *datapath.Datapath) error {
				change, _, err := d.Services().Put(cmd.Context(), service.CLI, s)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(c.Stdout, "service %s %s\n", s, change)
				return err
			})
		},
	}
	f.add(cmd)
	return cmd
}

func (c commands) svcRemove() *cobra.Command {
	var address, protocol string
	cmd := &cobra.Command{
		Use:     "rm --service ADDRESS:PORT",
		Short:   "Remove a service",
		Example: "  mustang svc rm --service=10.96.0.100:5201",
		Args:    cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if address == "" {
				return cli.Usage(errors.New("--service is missing"))
			}
			frontend, err := service.ParseFrontend(address)
			if err != nil {
				return cli.Usage(err)
			}
			p, err := service.ParseProtocol(protocol)
			if err != nil {
				return cli.Usage(err)
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			key := service.Key{Frontend: frontend, Protocol: p}
			return c.OnExisting(cmd.Context(), fmt.Errorf("service %s does not exist", key), func(d *datapath.Datapath) error {
				return d.Services().Delete(cmd.Context(), service.CLI, key)
			})
		},
	}
	cmd.Flags().StringVar(&address, "service", "", "address and port that clients connect to")
	cmd.Flags().StringVar(&protocol, "protocol", "any", "tcp, udp, sctp, or any for all protocols of the service")
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
	DSR             service.DSR      `json:"dsr,omitzero"`
	SourceRanges    []netip.Prefix   `json:"source_ranges,omitempty"`
	HealthCheckPort uint16           `json:"health_check_port,omitzero"`
	OnRemove        service.OnRemove `json:"on_remove,omitzero"`
}

func (c commands) svcList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Short: "List services",
		Long: `List services. OWNER is who made one and alone changes it: cli is svc add and svc apply.
SETTINGS are those that are not the default. Behind a backend are its state unless it is
active, its weight unless it is 1, and local if it is on this node. Of more than four
backends or source ranges the table has three; -o json has all.`,
	}
	return cli.Listing(cmd, func(format string) error {
		services, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]service.Service, error) { return d.Services().List(cmd.Context()) })
		if err != nil {
			return err
		}
		return c.printServices(services, format)
	})
}

func (c commands) printServices(services []service.Service, format string) error {
	list := []serviceJSON{}
	var rows [][]string
	for _, s := range services {
		item := serviceJSON{
			ID: s.ID, Owner: s.Owner.String(), Protocol: s.Protocol.String(), Service: s.Frontend.Addr().String(), Port: s.Frontend.Port(),
			Backends: backendTexts(s.Backends), Choice: s.Choice, AffinitySeconds: int(s.Affinity / time.Second),
			InternalPolicy: s.InternalPolicy, ExternalPolicy: s.ExternalPolicy, NodePort: s.NodePort, External: s.External,
			SourceRanges: s.SourceRanges, HealthCheckPort: s.HealthCheckPort, OnRemove: s.OnRemove, DSR: s.DSR,
		}
		list = append(list, item)
		rows = append(rows, []string{
			strconv.FormatUint(uint64(item.ID), 10), item.Owner, item.Protocol, item.Service, strconv.Itoa(int(item.Port)),
			cmp.Or(settings(s), "-"), cmp.Or(shortened(item.Backends), "-"),
		})
	}
	if format == "json" {
		return cli.PrintJSON(c.Stdout, struct {
			Schema   int           `json:"schema"`
			Services []serviceJSON `json:"services"`
		}{cli.Schema, list})
	}
	return cli.PrintTable(c.Stdout, []string{"ID", "OWNER", "PROTOCOL", "SERVICE", "PORT", "SETTINGS", "BACKENDS"}, rows)
}

// shortened joins texts for a table that a service with hundreds of them must not make too wide.
func shortened(texts []string) string {
	const most = 4
	if len(texts) > most {
		texts = append(slices.Clone(texts[:most-1]), fmt.Sprintf("and %d more", len(texts)-most+1))
	}
	return strings.Join(texts, " ")
}

func backendTexts(list []service.Backend) []string {
	texts := make([]string, 0, len(list))
	for _, b := range list {
		texts = append(texts, b.String())
	}
	return texts
}
