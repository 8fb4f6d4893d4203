// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/policy"
	"mustang/internal/service"
)

func (c commands) explain() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "explain SOURCE DESTINATION [PORT[/PROTOCOL]]",
		Short: "Tell whether a connection is allowed, and which rules say so",
		Long: `Tell whether policies allow a connection, and which rule says so: that of the source's policies on
egress, and of the destination's on ingress. SOURCE and DESTINATION are addresses, or pods by
NAMESPACE/NAME; DESTINATION is that of the backend for a service. The protocol is tcp, udp or sctp,
and tcp by default; without a port, it is one that has no ports, such as a ping. Only pods of this node have
their policies enforced here. The answer is that of the policies, also where they are only audited.`,
		Example: `  mustang policy explain 192.168.10.10 192.168.10.11 80
  mustang policy explain shop/web shop/db 5432/tcp`,
		Args: cli.Arguments("SOURCE", "DESTINATION", "[PORT/PROTOCOL]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.CheckOutput(format); err != nil {
				return err
			}
			f := policy.Flow{Protocol: unix.IPPROTO_ICMP}
			var err error
			if len(args) == 3 {
				if f, err = parsePort(args[2]); err != nil {
					return cli.Usage(err)
				}
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			found, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]known, error) {
				if err := refuseService(cmd.Context(), d, args[1], f); err != nil {
					return nil, err
				}
				s, err := d.Policies().Snapshot()
				if err != nil {
					return nil, err
				}
				audited, err := d.Policies().Audited()
				return []known{{s, audited}}, err
			})
			if err != nil {
				return err
			}
			found = append(found, known{})
			return c.printFlow(found[0], f, args, format)
		},
	}
	cli.AddOutput(cmd, &format)
	return cmd
}

// known is what a datapath decides by.
type known struct {
	policy.Snapshot
	audited bool
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

// parsePort parses PORT or PORT/PROTOCOL.
func parsePort(text string) (f policy.Flow, err error) {
	port, protocol, ok := strings.Cut(text, "/")
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return f, fmt.Errorf("port %q: want a number from 0 to 65535", port)
	}
	f.Port, f.Protocol = uint16(number), service.TCP
	if ok {
		f.Protocol, err = service.ParseProtocol(protocol)
		if err == nil && f.Protocol == service.Any {
			err = fmt.Errorf("protocol %q: want tcp, udp or sctp", protocol)
		}
	}
	return f, err
}

// end returns the address of a pod or the address itself, of the family of another address if that is valid.
func end(s policy.Snapshot, text string, like netip.Addr) (netip.Addr, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return a.Unmap(), nil
	}
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		return netip.Addr{}, cli.Usage(fmt.Errorf("%q: want an address or NAMESPACE/NAME of a pod", text))
	}
	for _, p := range s.Pods {
		if p.Namespace != namespace || p.Name != name {
			continue
		}
		for _, a := range p.Addresses {
			if !like.IsValid() || a.Is4() == like.Is4() {
				return a, nil
			}
		}
		return netip.Addr{}, fmt.Errorf("pod %s has no address of the family", text)
	}
	return netip.Addr{}, fmt.Errorf("pod %s is not known: mustang ep ls has those that are (ep add --pod names one)", text)
}

// decisionJSON is the decision of one end as policy explain -o json prints it.
type decisionJSON struct {
	Allow bool   `json:"allow"`
	Rule  string `json:"rule"`
}

func (c commands) printFlow(s known, f policy.Flow, args []string, format string) (err error) {
	if f.Source, err = end(s.Snapshot, args[0], netip.Addr{}); err != nil {
		return err
	}
	if f.Destination, err = end(s.Snapshot, args[1], f.Source); err != nil {
		return err
	}
	egress, ingress, err := policy.Explain(s.Snapshot, f)
	if err != nil {
		return err
	}
	if format == "json" {
		return cli.PrintJSON(c.Stdout, struct {
			Schema  int          `json:"schema"`
			Allow   bool         `json:"allow"`
			Egress  decisionJSON `json:"egress"`
			Ingress decisionJSON `json:"ingress"`
			Audited bool         `json:"audited"`
		}{
			cli.Schema, egress.Allow && ingress.Allow,
			decisionJSON{egress.Allow, egress.Origin.String()}, decisionJSON{ingress.Allow, ingress.Origin.String()},
			s.audited,
		})
	}
	verdict := map[bool]string{true: "allowed", false: "denied"}
	_, err = fmt.Fprintf(c.Stdout, "%s\negress: %s by %s\ningress: %s by %s\n", verdict[egress.Allow && ingress.Allow],
		verdict[egress.Allow], egress.Origin, verdict[ingress.Allow], ingress.Origin)
	if err == nil && s.audited {
		_, err = fmt.Fprintln(c.Stdout, auditedOnly)
	}
	return err
}
