// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mustang/internal/datapath"
	"mustang/internal/lb"
)

func (c *config) svc() *cobra.Command {
	return group("svc", "Services: addresses that stand for a set of backends", c.svcAdd(), c.svcList(), c.svcRemove())
}

// open opens the node's datapath, making it if it is not there yet.
func (c *config) open() (*datapath.Datapath, error) {
	return datapath.Open(datapath.Options{Root: c.bpfRoot})
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
	var service, protocol string
	var backends []string
	cmd := &cobra.Command{
		Use:   "add --service ADDRESS:PORT --backend ADDRESS:PORT [--backend ...]",
		Short: "Add a service, or replace the backends of one",
		Long: `Add a service with exactly the given backends. A service that is there already
gets them in place of its own; open TCP connections stay where they are.`,
		Example: `  mustang svc add --service=10.96.0.100:5201 --backend=192.168.10.10:5201
  mustang svc add --service='[fd00:96::100]:5201' --backend='[fd00:10::a]:5201' --protocol=tcp`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := parseService(service, protocol, backends)
			if err != nil {
				return usage(err)
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			d, err := c.open()
			if err != nil {
				return err
			}
			defer d.Close()
			change, id, err := d.PutService(s)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.stdout, "service %d %s\n", id, change)
			return err
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "address and port that clients connect to")
	cmd.Flags().StringArrayVar(&backends, "backend", nil, "address and port of a backend; repeat for more")
	cmd.Flags().StringVar(&protocol, "protocol", "any", "tcp, udp or any")
	return cmd
}

func parseService(service, protocol string, backends []string) (s lb.Service, err error) {
	if service == "" {
		return s, errors.New("--service is missing")
	}
	if s.Frontend, err = lb.ParseFrontend(service); err != nil {
		return s, err
	}
	if s.Protocol, err = lb.ParseProtocol(protocol); err != nil {
		return s, err
	}
	if len(backends) == 0 {
		return s, errors.New("--backend is missing")
	}
	for _, text := range backends {
		backend, err := lb.ParseAddrPort(text)
		if err != nil {
			return s, err
		}
		s.Backends = append(s.Backends, backend)
	}
	return s, s.Validate()
}

func (c *config) svcRemove() *cobra.Command {
	var service, protocol string
	cmd := &cobra.Command{
		Use:     "rm --service ADDRESS:PORT",
		Short:   "Remove a service",
		Example: "  mustang svc rm --service=10.96.0.100:5201",
		Args:    arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if service == "" {
				return usage(errors.New("--service is missing"))
			}
			frontend, err := lb.ParseFrontend(service)
			if err != nil {
				return usage(err)
			}
			p, err := lb.ParseProtocol(protocol)
			if err != nil {
				return usage(err)
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			d, err := c.openExisting()
			if err != nil {
				return err
			}
			if d == nil {
				return fmt.Errorf("service %s/%s does not exist", frontend, p)
			}
			defer d.Close()
			return d.DeleteService(frontend, p)
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "address and port that clients connect to")
	cmd.Flags().StringVar(&protocol, "protocol", "any", "tcp, udp, or any for whichever it has")
	return cmd
}

// serviceJSON is a service as svc ls -o json prints it.
type serviceJSON struct {
	ID       uint32   `json:"id"`
	Protocol string   `json:"protocol"`
	Service  string   `json:"service"`
	Port     uint16   `json:"port"`
	Backends []string `json:"backends"`
}

func (c *config) svcList() *cobra.Command {
	return listing(&cobra.Command{Use: "ls", Short: "List services"}, func(format string) error {
		services, err := read(c, (*datapath.Datapath).Services)
		if err != nil {
			return err
		}
		return c.printServices(services, format)
	})
}

func (c *config) printServices(services []lb.Service, format string) error {
	list := []serviceJSON{}
	var rows [][]string
	for _, s := range services {
		item := serviceJSON{
			ID: s.ID, Protocol: s.Protocol.String(), Service: s.Frontend.Addr().String(), Port: s.Frontend.Port(),
			Backends: addrPorts(s.Backends),
		}
		list = append(list, item)
		rows = append(rows, []string{
			strconv.FormatUint(uint64(item.ID), 10), item.Protocol, item.Service, strconv.Itoa(int(item.Port)),
			strings.Join(item.Backends, ","),
		})
	}
	if format == "json" {
		return printJSON(c.stdout, struct {
			Schema   int           `json:"schema"`
			Services []serviceJSON `json:"services"`
		}{schema, list})
	}
	return printTable(c.stdout, []string{"ID", "PROTOCOL", "SERVICE", "PORT", "BACKENDS"}, rows)
}

func addrPorts(list []netip.AddrPort) []string {
	texts := make([]string, 0, len(list))
	for _, ap := range list {
		texts = append(texts, ap.String())
	}
	return texts
}
