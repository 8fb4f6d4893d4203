// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
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
their policies enforced here.`,
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
			found, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]policy.Snapshot, error) {
				s, err := d.Policies().Snapshot()
				return []policy.Snapshot{s}, err
			})
			if err != nil {
				return err
			}
			found = append(found, policy.Snapshot{})
			return c.printFlow(found[0], f, args, format)
		},
	}
	cli.AddOutput(cmd, &format)
	return cmd
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
	return netip.Addr{}, fmt.Errorf("pod %s is not known", text)
}

// decisionJSON is the decision of one end as policy explain -o json prints it.
type decisionJSON struct {
	Allow bool   `json:"allow"`
	Rule  string `json:"rule"`
}

func (c commands) printFlow(s policy.Snapshot, f policy.Flow, args []string, format string) (err error) {
	if f.Source, err = end(s, args[0], netip.Addr{}); err != nil {
		return err
	}
	if f.Destination, err = end(s, args[1], f.Source); err != nil {
		return err
	}
	egress, ingress, err := policy.Explain(s, f)
	if err != nil {
		return err
	}
	if format == "json" {
		return cli.PrintJSON(c.Stdout, struct {
			Schema  int          `json:"schema"`
			Allow   bool         `json:"allow"`
			Egress  decisionJSON `json:"egress"`
			Ingress decisionJSON `json:"ingress"`
		}{
			cli.Schema, egress.Allow && ingress.Allow,
			decisionJSON{egress.Allow, egress.Origin.String()}, decisionJSON{ingress.Allow, ingress.Origin.String()},
		})
	}
	verdict := map[bool]string{true: "allowed", false: "denied"}
	_, err = fmt.Fprintf(c.Stdout, "%s\negress: %s by %s\ningress: %s by %s\n", verdict[egress.Allow && ingress.Allow],
		verdict[egress.Allow], egress.Origin, verdict[ingress.Allow], ingress.Origin)
	return err
}
