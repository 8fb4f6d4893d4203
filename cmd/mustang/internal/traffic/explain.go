// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
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
		Short: "Show whether policies allow a connection, and the rules that decide",
		Long: `Show whether policies allow a connection, and the rules that decide: of the source's policies on egress,
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
			k, err := cli.Read(c.Config, func(d *datapath.Datapath) (known, error) {
				if err := refuseService(ctx, d, args[1], f); err != nil {
					return known{}, err
				}
				return know(ctx, d)
			})
			if err != nil {
				return err
			}
			answers, err := k.explain(f, args)
			if err != nil {
				return err
			}
			if format == "json" {
				return c.printAnswers(k, answers)
			}
			_, err = fmt.Fprintln(c.Stdout, strings.Join(k.lines(answers, f.Port), "\n"))
			return err
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
		exact := s.Frontend.Port() == f.Port && (s.Protocol == service.Any || s.Protocol == f.Protocol)
		if s.Frontend.Addr() == addr.Unmap() && (exact || f.Port == 0 && !s.NodePort) {
			return fmt.Errorf("%s is a service: name a backend and its port", s)
		}
	}
	return nil
}

func parsePort(text string) (f policy.Flow, err error) {
	port, protocol, ok := strings.Cut(text, "/")
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return f, fmt.Errorf("port %q: want PORT or PORT/PROTOCOL by number, such as 80 or 53/udp", port)
	}
	f.Port, f.Protocol = uint16(number), service.TCP
	if !ok {
		return f, nil
	}
	if f.Protocol, err = service.ParseProtocol(protocol); err != nil || f.Protocol == service.Any {
		err = fmt.Errorf("protocol %q: want tcp, udp or sctp; leave the port out for others", protocol)
	}
	return f, err
}

type answer struct {
	Source      end      `json:"source"`
	Destination end      `json:"destination"`
	Allow       bool     `json:"allow"`
	Egress      decision `json:"egress"`
	Ingress     decision `json:"ingress"`
}

type end struct {
	Address string            `json:"address"`
	Pod     string            `json:"pod,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// Elsewhere is whether the pod is on another node: this node does not enforce its policies.
	Elsewhere bool `json:"elsewhere,omitempty"`
}

func (e end) String() string {
	text := strings.TrimPrefix(e.Pod+" "+e.Address, " ")
	if len(e.Labels) > 0 {
		text += " (" + cli.Labels(e.Labels) + ")"
	}
	return text
}

type decision struct {
	Allow bool   `json:"allow"`
	Rule  string `json:"rule"`
	// Isolating are the policies, by NAMESPACE/NAME, that select the pod, if none of their rules allows the connection.
	Isolating []string `json:"isolating,omitempty"`
	reason    policy.Reason
}

func (d decision) String() string {
	switch last := len(d.Isolating) - 1; {
	case d.reason == policy.ToItself || d.reason == policy.OwnNode:
		return verdict(d.Allow) + ": " + d.Rule
	case d.reason != policy.DefaultDeny:
		return verdict(d.Allow) + " by " + d.Rule
	case last > 0:
		return fmt.Sprintf("denied: %s and %s select this pod, and no rule of theirs allows it",
			strings.Join(d.Isolating[:last], ", "), d.Isolating[last])
	}
	return fmt.Sprintf("denied: %s selects this pod, and no rule of it allows it", strings.Join(d.Isolating, ""))
}

func verdict(allow bool) string {
	if allow {
		return "allowed"
	}
	return "denied"
}

func (k known) explain(of policy.Flow, ends []string) (answers []answer, err error) {
	flows, err := k.flows(ends[0], ends[1])
	for _, f := range flows {
		f.Protocol, f.Port = of.Protocol, of.Port
		egress, ingress, err := policy.Explain(k.Snapshot, f)
		if err != nil {
			return nil, err
		}
		decide := func(d policy.Decision) decision {
			out := decision{Allow: d.Allow, Rule: k.describe(d.Origin), reason: d.Origin.Reason}
			if d.Origin.Reason == policy.DefaultDeny {
				out.Isolating = policy.Isolating(k.Snapshot, f, d.Origin.Direction)
			}
			return out
		}
		answers = append(answers, answer{
			Source: k.end(f.Source), Destination: k.end(f.Destination), Allow: egress.Allow && ingress.Allow,
			Egress: decide(egress), Ingress: decide(ingress),
		})
	}
	return answers, err
}

func (k known) end(a netip.Addr) end {
	e := end{Address: a.String()}
	for _, p := range k.Pods {
		if !p.HostNetwork && slices.ContainsFunc(p.Addresses, func(of netip.Addr) bool { return of.Unmap() == a }) {
			e.Pod, e.Labels = p.Namespace+"/"+p.Name, p.Labels
		}
	}
	e.Elsewhere = e.Pod != "" && !slices.ContainsFunc(k.Pods, func(p policy.Pod) bool {
		return p.Node == k.Node && p.Namespace+"/"+p.Name == e.Pod
	})
	return e
}

func (k known) verdict(allow bool) string {
	if !allow && k.audited {
		return "would be denied: policies are audited"
	}
	return verdict(allow)
}

func (k known) lines(answers []answer, port uint16) []string {
	a := answers[0]
	lines := []string{
		fmt.Sprintf("%s > %s", a.Source, a.Destination), k.verdict(a.Allow),
		"egress: " + a.Egress.String(), "ingress: " + a.Ingress.String(),
	}
	for _, e := range []end{a.Source, a.Destination} {
		if e.Elsewhere {
			lines = append(lines, e.Pod+" is not a pod of this node, which does not enforce its policies")
		}
	}
	if port == 0 {
		lines = append(lines, "for protocols without ports, as of a ping: name PORT for others")
	}
	for _, other := range answers[1:] {
		lines = append(lines, fmt.Sprintf("by IPv6, %s > %s: %s", other.Source.Address, other.Destination.Address,
			k.verdict(other.Allow)))
	}
	if i := slices.IndexFunc(k.listed, func(p policies.Listed) bool { return p.Off }); i >= 0 {
		lines = append(lines, fmt.Sprintf("without the audited policies of owner %s, which are off: others are enforced",
			k.listed[i].Owner))
	}
	return lines
}

func (c commands) printAnswers(k known, answers []answer) error {
	out := struct {
		Schema int `json:"schema"`
		answer
		Audited bool `json:"audited"`
		// IPv6 is the answer for the IPv6 addresses of two pods that have both families.
		IPv6 *answer `json:"ipv6,omitempty"`
	}{Schema: cli.Schema, answer: answers[0], Audited: k.audited}
	if len(answers) > 1 {
		out.IPv6 = &answers[1]
	}
	return cli.PrintJSON(c.Stdout, out)
}

// known is the state of a datapath that decides verdicts.
type known struct {
	policy.Snapshot
	listed  []policies.Listed
	audited bool
	cluster bool // an agent follows a cluster here: it has written a policy, or a service
}

func know(ctx context.Context, d *datapath.Datapath) (k known, err error) {
	if k.Snapshot, err = d.Policies().Snapshot(); err != nil {
		return k, err
	}
	if k.listed, err = d.Policies().List(); err != nil {
		return k, err
	}
	if k.audited, err = d.Policies().Audited(); err != nil {
		return k, err
	}
	services, err := d.Services().List(ctx)
	k.cluster = slices.ContainsFunc(k.listed, func(p policies.Listed) bool { return p.Owner == service.Agent }) ||
		slices.ContainsFunc(services, func(s service.Service) bool { return s.Owner == service.Agent })
	return k, err
}

func (k known) describe(o policy.Origin) string {
	rule := ""
	var owners []string
	for i := range k.listed {
		p := &k.listed[i]
		if p.Off || p.Tier != o.Tier || p.Namespace != o.Namespace || p.Name != o.Name {
			continue
		}
		owners = append(owners, p.Owner.String())
		if r := o.Rule(&p.Policy); r != nil && r.Name != "" {
			rule = " (" + r.Name + ")"
		}
	}
	if len(owners) > 1 {
		rule = ", of a policy by this name of " + strings.Join(owners, " or ")
	}
	return o.String() + rule
}

// flows returns the connection between two ends: once for each address family that both ends have, IPv4 first.
func (k known) flows(source, destination string) (found []policy.Flow, err error) {
	from, err := k.addresses(source)
	if err != nil {
		return nil, err
	}
	to, err := k.addresses(destination)
	if err != nil {
		return nil, err
	}
	for _, like := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		if i, j := slices.IndexFunc(from, like), slices.IndexFunc(to, like); i >= 0 && j >= 0 {
			found = append(found, policy.Flow{Source: from[i], Destination: to[j]})
		}
	}
	if len(found) == 0 {
		err = fmt.Errorf("%s and %s are of different IP families", source, destination)
		if !strings.Contains(source+destination, "/") { // no pods
			err = cli.Usage(err)
		}
	}
	return found, err
}

func (k known) addresses(end string) (all []netip.Addr, err error) {
	if !strings.Contains(end, "/") {
		addr, err := netip.ParseAddr(end)
		switch addr = addr.Unmap(); {
		case err != nil:
			err = fmt.Errorf("%q: want an address or NAMESPACE/NAME of a pod (mustang ep ls)", end)
			for _, p := range k.Pods {
				if p.Name == end {
					err = fmt.Errorf("%q: want an address or NAMESPACE/NAME of a pod; did you mean %s/%s?", end, p.Namespace, end)
				}
			}
		case addr.Is6() && addr.IsLinkLocalUnicast():
			err = errors.New("an address is link-local: name the pod, or another address of it")
		}
		return []netip.Addr{addr}, cli.Usage(err)
	}
	err = fmt.Errorf("no pod %s on this node; name a pod elsewhere by its address", end)
	for _, here := range []bool{true, false} {
		for _, p := range k.Pods {
			if p.Namespace+"/"+p.Name == end && (p.Node == k.Node) == here {
				err = nil
				all = append(all, cli.Convert(p.Addresses, netip.Addr.Unmap)...)
			}
		}
	}
	return all, err
}
