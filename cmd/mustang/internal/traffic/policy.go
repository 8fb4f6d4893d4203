// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/policy"
	"mustang/internal/service"
)

type policyJSON struct {
	Tier       string `json:"tier"`
	Priority   uint16 `json:"priority"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Ingress    bool   `json:"ingress"`
	Egress     bool   `json:"egress"`
	Owner      string `json:"owner"`
	Pods       int    `json:"pods"`
	Audited    bool   `json:"audited"`
	Off        bool   `json:"off"`
	JudgesNode bool   `json:"judges_node"` // whether the pods' own node needs a rule as all others do
}

func (c commands) list() *cobra.Command {
	return cli.ListCommand(c.Config, &cobra.Command{
		Use:   "ls",
		Short: "List policies in evaluation order",
		Long: `List policies in evaluation order. DIRECTIONS are the directions that a policy restricts. PODS counts
the pods of this node that it selects. MODE "audited": denied packets are counted and pass (policy
apply --audit). "off": an audited policy is not counted, since policies of another owner are enforced.
"node judged": this node too needs a rule to reach the pods, or to be reached (policy apply --judge-node).`,
	}, cli.Table[policyJSON]{
		Key:    "policies",
		Header: []string{"TIER", "PRIORITY", "NAMESPACE", "NAME", "DIRECTIONS", "PODS", "MODE", "OWNER"},
		Row:    policyJSON.row,
	}, func(_ context.Context, d *datapath.Datapath) (list []policyJSON, err error) {
		all, err := d.Policies().List()
		for _, p := range all {
			list = append(list, policyJSON{
				p.Tier.String(), p.Priority, p.Namespace, p.Name, p.Concerns(policy.Ingress), p.Concerns(policy.Egress),
				p.Owner.String(), p.Pods, p.Audited, p.Off, p.JudgesNode,
			})
		}
		return list, err
	})
}

func (p policyJSON) row() []any {
	priority, directions, mode := fmt.Sprint(p.Priority), []policy.Direction{}, "enforced"
	if p.Tier == policy.Namespaced.String() {
		priority = ""
	}
	if p.Ingress {
		directions = append(directions, policy.Ingress)
	}
	if p.Egress {
		directions = append(directions, policy.Egress)
	}
	switch {
	case p.Off:
		mode = "off"
	case p.Audited:
		mode = "audited"
	}
	if p.JudgesNode {
		mode += ", node judged"
	}
	return []any{p.Tier, priority, p.Namespace, p.Name, directions, p.Pods, mode, p.Owner}
}

func (c commands) remove() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "delete NAMESPACE/NAME | NAME | --all",
		Short: "Delete policies that policy apply added",
		Long: `Delete a NetworkPolicy by its namespace and name, a ClusterNetworkPolicy by its name, or all policies.
Policies of other owners stay.`,
		Example: `  mustang policy delete default/deny-all
  mustang policy delete baseline`,
		Args: cli.Arguments("[NAMESPACE/NAME]"),
		PreRunE: cli.Check(func(args []string) error {
			switch {
			case (len(args) == 0) != all:
				return errors.New("name a policy by NAMESPACE/NAME or NAME, or say --all")
			case !all && slices.Contains(strings.SplitN(args[0], "/", 2), ""):
				return fmt.Errorf("policy %q: want NAMESPACE/NAME or NAME", args[0])
			}
			return nil
		}),
		RunE: cli.AsRoot(func(ctx context.Context, args []string) error {
			name, none := "", errors.New("there are no policies")
			if !all {
				name, none = args[0], fmt.Errorf("policy %s does not exist", args[0])
			}
			return c.OnExisting(ctx, none, func(d *datapath.Datapath) error {
				result, err := d.Policies().Delete(ctx, service.CLI, func(p policy.Policy) bool {
					return all || fullName(p) == name
				})
				switch {
				case err != nil:
					return err
				case result.Deleted > 0:
					return c.print(result, "")
				case all:
					return errors.New("there are no policies of the command line")
				}
				return missing(d, name)
			})
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "delete all policies of the command line")
	return cmd
}

func fullName(p policy.Policy) string { return strings.TrimPrefix(p.Namespace+"/"+p.Name, "/") }

// missing returns why a policy to delete is not there: it has another owner, or the name lacks its namespace.
func missing(d *datapath.Datapath, name string) error {
	all, err := d.Policies().List()
	if err != nil {
		return err
	}
	for _, p := range all {
		switch full := fullName(p.Policy); {
		case full == name && p.Owner == service.Agent:
			object := fmt.Sprintf("networkpolicy -n %s %s", p.Namespace, p.Name)
			if p.Tier != policy.Namespaced {
				object = "clusternetworkpolicy " + p.Name
			}
			return fmt.Errorf("policy %s is of owner agent: delete it in the cluster, by kubectl delete %s", name, object)
		case full == name:
			return fmt.Errorf("policy %s is of owner %s, which deletes it", name, p.Owner)
		case p.Name == name && p.Owner == service.CLI:
			return fmt.Errorf("policy %s does not exist; NAMESPACE/NAME is the form for a NetworkPolicy, such as %s", name, full)
		}
	}
	return fmt.Errorf("policy %s does not exist", name)
}
