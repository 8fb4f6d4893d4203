// SPDX-License-Identifier: Apache-2.0

// Package netpolicy is the command policy: network policies on the command line.
package netpolicy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// commands are those on policies.
type commands struct{ *cli.Config }

// Command returns the command policy.
func Command(config *cli.Config) *cobra.Command {
	c := commands{config}
	return cli.Group("policy", "Network policies: which pods may talk", c.apply(), c.list(), c.remove(), c.explain(), c.trace())
}

// policyJSON is a policy as policy ls -o json prints it.
type policyJSON struct {
	Tier      string `json:"tier"`
	Priority  uint16 `json:"priority"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Ingress   bool   `json:"ingress"`
	Egress    bool   `json:"egress"`
	Owner     string `json:"owner"`
	Pods      int    `json:"pods"`
	Audited   bool   `json:"audited"`
	Off       bool   `json:"off"`
	// JudgesNode is whether the pods' own node needs a rule as all others do.
	JudgesNode bool `json:"judges_node"`
}

func (c commands) list() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List policies in evaluation order",
		Long: `List policies in evaluation order. DIRECTIONS are the directions that a policy restricts. PODS counts
the pods of this node that it selects. MODE "audited": denied packets are counted and pass (policy
apply --audit). "off": an audited policy is not counted, since policies of another owner are enforced.
"node judged": this node too needs a rule to reach the pods, or to be reached (policy apply --judge-node).`,
	}
	return cli.Listing(cmd, func(format string) error {
		all, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]policies.Listed, error) { return d.Policies().List() })
		if err != nil {
			return err
		}
		list := []policyJSON{}
		var rows [][]string
		for _, p := range all {
			item := policyJSON{
				Tier: p.Tier.String(), Priority: p.Priority, Namespace: p.Namespace, Name: p.Name, Owner: p.Owner.String(),
				Ingress: p.Concerns(policy.Ingress), Egress: p.Concerns(policy.Egress), Pods: p.Pods, Audited: p.Audited, Off: p.Off,
				JudgesNode: p.JudgesNode,
			}
			list = append(list, item)
			mode := "enforced"
			switch {
			case p.Off:
				mode = "off"
			case item.Audited:
				mode = "audited"
			}
			if p.JudgesNode {
				mode += ", node judged"
			}
			rows = append(rows, []string{
				item.Tier, priority(p.Policy), dash(item.Namespace), item.Name, directions(p.Policy), strconv.Itoa(item.Pods), mode, item.Owner,
			})
		}
		if format == "json" {
			return cli.PrintJSON(c.Stdout, struct {
				Schema   int          `json:"schema"`
				Policies []policyJSON `json:"policies"`
			}{cli.Schema, list})
		}
		return cli.PrintTable(c.Stdout, []string{"TIER", "PRIORITY", "NAMESPACE", "NAME", "DIRECTIONS", "PODS", "MODE", "OWNER"}, rows)
	})
}

func priority(p policy.Policy) string {
	if p.Tier == policy.Namespaced {
		return "-"
	}
	return strconv.Itoa(int(p.Priority))
}

func directions(p policy.Policy) string {
	var all []string
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if p.Concerns(d) {
			all = append(all, d.String())
		}
	}
	return dash(strings.Join(all, ","))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (c commands) remove() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "delete NAMESPACE/NAME | NAME | --all",
		Short: "Delete policies of the command line",
		Long: `Delete a NetworkPolicy by its namespace and name, a ClusterNetworkPolicy by its name, or all policies.
Policies of other owners stay.`,
		Example: `  mustang policy delete default/deny-all
  mustang policy delete baseline`,
		Args: cli.Arguments("[NAMESPACE/NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) != all {
				return cli.Usage(errors.New("name a policy by NAMESPACE/NAME or NAME, or say --all"))
			}
			is, none := func(policy.Policy) bool { return true }, errors.New("there are no policies")
			var namespace, name string
			if !all {
				var ok bool
				if namespace, name, ok = strings.Cut(args[0], "/"); !ok {
					namespace, name = "", args[0]
				}
				if name == "" || ok && namespace == "" {
					return cli.Usage(fmt.Errorf("policy %q: want NAMESPACE/NAME or NAME", args[0]))
				}
				is = func(p policy.Policy) bool { return p.Namespace == namespace && p.Name == name }
				none = fmt.Errorf("policy %s does not exist", args[0])
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			return c.OnExisting(cmd.Context(), none, func(d *datapath.Datapath) error {
				result, err := d.Policies().Delete(cmd.Context(), service.CLI, is)
				if err != nil {
					return err
				}
				if result.Deleted == 0 && !all {
					return missing(d, namespace, name)
				}
				if result.Deleted == 0 {
					return errors.New("there are no policies of the command line")
				}
				return c.print(result, "")
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "delete all policies of the command line")
	return cmd
}
