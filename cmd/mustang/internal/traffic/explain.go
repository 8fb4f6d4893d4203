// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

func (c commands) explain() *cobra.Command {
	var format string
	f := policy.Flow{Protocol: unix.IPPROTO_ICMP}
	cmd := &cobra.Command{
		Use:   "explain SOURCE DESTINATION [PORT[/PROTOCOL]]",
		Short: "Tell whether a connection is allowed, and which rules say so",
		Long: `Show whether policies allow a connection, and which rules decide: of the source's policies on egress,
and of the destination's policies on ingress. SOURCE and DESTINATION are addresses, or pods by
NAMESPACE/NAME. For a service, DESTINATION is a backend. An address chooses the family of the
other end. Between two pods that have IPv4 and IPv6 addresses, a line more has the verdict for IPv6.

PORT is a number. The protocol is tcp, udp or sctp, and tcp by default. Without PORT, the answer is
for a protocol without ports, such as ICMP. Only pods of this node have their policies
enforced here. Audited policies count like all others. The first line names
the pods with the addresses, and their labels.`,
		Example: `  mustang policy explain 192.168.10.10 192.168.10.11 80
  mustang policy explain shop/web shop/db 5432/tcp`,
		Args: cli.Arguments("SOURCE", "DESTINATION", "[PORT/PROTOCOL]"),
		PreRunE: cli.Check(func(args []string) (err error) {
			if len(args) == 3 {
				f, err = parsePort(args[2])
			}
			return err
		}),
		RunE: cli.AsRoot(func(ctx context.Context, args []string) error {
			found, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]known, error) {
				if err := refuseService(ctx, d, args[1], f); err != nil {
					return nil, err
				}
				now, err := know(d)
				if err == nil {
					now.cluster, err = followed(ctx, d, now)
				}
				return []known{now}, err
			})
			if err != nil {
				return err
			}
			found = append(found, known{})
			return c.printFlow(found[0], f, args, format)
		}),
	}
	cli.AddOutput(cmd, &format)
	return cmd
}

// refuseService returns an error if the destination is a service: policies judge connections to its backends.
func refuseService(ctx context.Context, d *datapath.Datapath, destination string, f policy.Flow) error {
	addr, err := netip.ParseAddr(destination)
	if err != nil { // the name of a pod
		return nil
	}
	services, err := d.Services().List(ctx)
	if err != nil {
		return err
	}
	for _, s := range services {
		if f.Port == 0 && s.Frontend.Addr() == addr.Unmap() && !s.NodePort {
			return fmt.Errorf("%s is the address of a service, %s: name a backend and its port", addr, s)
		}
		if s.Frontend != netip.AddrPortFrom(addr.Unmap(), f.Port) || s.Protocol != service.Any && s.Protocol != f.Protocol {
			continue
		}
		if len(s.Backends) == 0 {
			return fmt.Errorf("%s is a service without backends: it refuses all clients", s)
		}
		return fmt.Errorf("%s is a service: name one of its backends, such as %s", s, s.Backends[0].Addr.Addr())
	}
	return nil
}

// followed reports whether an agent follows a cluster here: it has written a policy, or a service.
func followed(ctx context.Context, d *datapath.Datapath, k known) (bool, error) {
	if slices.ContainsFunc(k.listed, func(p policies.Listed) bool { return p.Owner == service.Agent }) {
		return true, nil
	}
	services, err := d.Services().List(ctx)
	return slices.ContainsFunc(services, func(s service.Service) bool { return s.Owner == service.Agent }), err
}

// parsePort parses PORT or PORT/PROTOCOL.
func parsePort(text string) (f policy.Flow, err error) {
	port, protocol, ok := strings.Cut(text, "/")
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return f, fmt.Errorf("port %q: want a number from 1 to 65535, not the name of a port", port)
	}
	f.Port, f.Protocol = uint16(number), service.TCP
	if ok {
		f.Protocol, err = service.ParseProtocol(protocol)
		if err != nil || f.Protocol == service.Any {
			err = fmt.Errorf("protocol %q: want tcp, udp or sctp; leave the port out for others", protocol)
		}
	}
	return f, err
}
