// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/policy"
	"mustang/internal/service"
)

type commands struct{ *cli.Config }

func policyCommand(config *cli.Config) *cobra.Command {
	c := commands{config}
	return cli.Group("policy", "Network policies: which pods may talk", c.apply(), c.list(), c.remove(), c.explain(),
		trace(config))
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
	return cli.ListCommand(c.Config, cmd, cli.Table[policyJSON]{
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
	var namespace, name string
	none := errors.New("there are no policies")
	cmd := &cobra.Command{
		Use:   "delete NAMESPACE/NAME | NAME | --all",
		Short: "Delete policies of the command line",
		Long: `Delete a NetworkPolicy by its namespace and name, a ClusterNetworkPolicy by its name, or all policies.
Policies of other owners stay.`,
		Example: `  mustang policy delete default/deny-all
  mustang policy delete baseline`,
		Args: cli.Arguments("[NAMESPACE/NAME]"),
		PreRunE: cli.Check(func(args []string) error {
			if (len(args) == 0) != all {
				return errors.New("name a policy by NAMESPACE/NAME or NAME, or say --all")
			}
			if all {
				return nil
			}
			var ok bool
			if namespace, name, ok = strings.Cut(args[0], "/"); !ok {
				namespace, name = "", args[0]
			}
			if name == "" || ok && namespace == "" {
				return fmt.Errorf("policy %q: want NAMESPACE/NAME or NAME", args[0])
			}
			none = fmt.Errorf("policy %s does not exist", args[0])
			return nil
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			return c.OnExisting(ctx, none, func(d *datapath.Datapath) error {
				result, err := d.Policies().Delete(ctx, service.CLI, func(p policy.Policy) bool {
					return all || p.Namespace == namespace && p.Name == name
				})
				switch {
				case err != nil:
					return err
				case result.Deleted == 0 && !all:
					return missing(d, namespace, name)
				case result.Deleted == 0:
					return errors.New("there are no policies of the command line")
				}
				return c.print(result, "")
			})
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "delete all policies of the command line")
	return cmd
}

// missing returns why policies to delete are not there: they have another owner, or their name lacks its namespace.
func missing(d *datapath.Datapath, namespace, name string) error {
	all, err := d.Policies().List()
	if err != nil {
		return err
	}
	full := strings.TrimPrefix(namespace+"/"+name, "/")
	for _, p := range all {
		switch {
		case p.Namespace == namespace && p.Name == name && p.Owner == service.Agent:
			object := fmt.Sprintf("networkpolicy -n %s %s", p.Namespace, p.Name)
			if p.Tier != policy.Namespaced {
				object = "clusternetworkpolicy " + p.Name
			}
			return fmt.Errorf("policy %s is of owner agent: delete it in the cluster, by kubectl delete %s", full, object)
		case p.Namespace == namespace && p.Name == name:
			return fmt.Errorf("policy %s is of owner %s, which deletes it", full, p.Owner)
		case namespace == "" && p.Name == name && p.Owner == service.CLI:
			return fmt.Errorf("policy %s does not exist; NAMESPACE/NAME is the form for a NetworkPolicy, such as %s/%s", full,
				p.Namespace, p.Name)
		}
	}
	return fmt.Errorf("policy %s does not exist", full)
}
