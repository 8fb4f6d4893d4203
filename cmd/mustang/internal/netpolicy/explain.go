// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"context"
	"fmt"
	"maps"
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
	cmd := &cobra.Command{
		Use:   "explain SOURCE DESTINATION [PORT[/PROTOCOL]]",
		Short: "Tell whether a connection is allowed, and which rules say so",
		Long: `Tell whether policies allow a connection, and which rule says so: that of the source's policies on
egress, and of the destination's on ingress. SOURCE and DESTINATION are addresses, or pods by
NAMESPACE/NAME; DESTINATION is that of the backend for a service. The protocol is tcp, udp or sctp,
and tcp by default. Without a port, it is one that has no ports, such as that of a ping: PORT/icmp is no
form. Only pods of this node have their policies enforced here. The answer is that of the policies, also
where they are only audited. Its first line tells which pods the addresses are of, with their labels.`,
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
				now, err := know(d)
				if err == nil {
					now.cluster, err = followed(cmd.Context(), d, now)
				}
				return []known{now}, err
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

// end returns the address of a pod or the address itself, of the family of another address if that is valid. Of pods by one name, that of
// this node comes first.
func end(s known, text string, like netip.Addr) (netip.Addr, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return a.Unmap(), nil
	}
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		return netip.Addr{}, cli.Usage(fmt.Errorf("%q: want an address or NAMESPACE/NAME of a pod", text))
	}
	found := false
	for _, here := range []bool{true, false} {
		for _, p := range s.Pods {
			if p.Namespace != namespace || p.Name != name || (p.Node == s.Node) != here {
				continue
			}
			found = true
			for _, a := range p.Addresses {
				if !like.IsValid() || a.Is4() == like.Is4() {
					return a.Unmap(), nil
				}
			}
		}
	}
	if found {
		return netip.Addr{}, fmt.Errorf("pod %s has no address of the family", text)
	}
	if s.cluster {
		return netip.Addr{}, fmt.Errorf("no pod %s: name a pod (kubectl get pods), not a Deployment or Service", text)
	}
	return netip.Addr{}, fmt.Errorf("no pod %s: mustang ep ls has those that are known (ep add --pod names one)", text)
}

// decisionJSON is the decision of one end as policy explain -o json prints it.
type decisionJSON struct {
	Allow bool   `json:"allow"`
	Rule  string `json:"rule"`
}

// endJSON is an end of the connection.
type endJSON struct {
	Address string            `json:"address"`
	Pod     string            `json:"pod,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

func (e endJSON) String() string {
	text := strings.TrimPrefix(e.Pod+" "+e.Address, " ")
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(e.Labels)) {
		labels = append(labels, key+"="+e.Labels[key])
	}
	if len(labels) > 0 {
		text += " (" + strings.Join(labels, ",") + ")"
	}
	return text
}

func (c commands) printFlow(k known, f policy.Flow, args []string, format string) (err error) {
	if f.Source, err = end(k, args[0], netip.Addr{}); err != nil {
		return err
	}
	if f.Destination, err = end(k, args[1], f.Source); err != nil {
		return err
	}
	egress, ingress, err := policy.Explain(k.Snapshot, f)
	if err != nil {
		return err
	}
	source, destination := k.end(f.Source), k.end(f.Destination)
	if format == "json" {
		return cli.PrintJSON(c.Stdout, struct {
			Schema      int          `json:"schema"`
			Source      endJSON      `json:"source"`
			Destination endJSON      `json:"destination"`
			Allow       bool         `json:"allow"`
			Egress      decisionJSON `json:"egress"`
			Ingress     decisionJSON `json:"ingress"`
			Audited     bool         `json:"audited"`
		}{
			cli.Schema, source, destination, egress.Allow && ingress.Allow,
			decisionJSON{egress.Allow, k.describe(egress.Origin)}, decisionJSON{ingress.Allow, k.describe(ingress.Origin)},
			k.audited,
		})
	}
	tell := func(d policy.Decision) string {
		if d.Origin.Reason == policy.DefaultDeny {
			return isolated(k.Snapshot, f, d.Origin.Direction)
		}
		by := " by "
		if d.Origin.Reason == policy.ToItself || d.Origin.Reason == policy.OwnNode {
			by = ": "
		}
		return verdict(d.Allow) + by + k.describe(d.Origin)
	}
	_, err = fmt.Fprintf(c.Stdout, "%s > %s\n%s\negress: %s\ningress: %s\n", source, destination, verdict(egress.Allow && ingress.Allow),
		tell(egress), tell(ingress))
	if err == nil && k.audited {
		_, err = fmt.Fprintln(c.Stdout, auditedOnly)
	}
	if i := slices.IndexFunc(k.listed, func(p policies.Listed) bool { return p.Off }); err == nil && i >= 0 {
		_, err = fmt.Fprintf(c.Stdout, "without the audited policies of owner %s, which are off: others are enforced\n", k.listed[i].Owner)
	}
	return err
}

// isolated tells which policies deny a flow by default.
func isolated(s policy.Snapshot, f policy.Flow, d policy.Direction) string {
	names, _ := policy.Isolating(s, f, d) // it has been explained
	if last := len(names) - 1; last > 0 {
		return fmt.Sprintf("denied: %s and %s select this pod, and no rule of theirs allows it", strings.Join(names[:last], ", "), names[last])
	}
	return fmt.Sprintf("denied: %s selects this pod, and no rule of it allows it", strings.Join(names, ""))
}

func verdict(allow bool) string {
	if allow {
		return "allowed"
	}
	return "denied"
}
