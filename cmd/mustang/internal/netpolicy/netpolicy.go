// SPDX-License-Identifier: Apache-2.0

// Package netpolicy is the command policy: network policies on the command line.
package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
	"mustang/internal/service"
)

// commands are those on policies.
type commands struct{ *cli.Config }

// Command returns the command policy.
func Command(config *cli.Config) *cobra.Command {
	c := commands{config}
	return cli.Group("policy", "Network policies: which pods may talk", c.apply(), c.list(), c.remove(), c.explain(), c.trace())
}

func (c commands) apply() *cobra.Command {
	var path string
	var audit, judgeNode bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the policies of the command line exactly those of a file",
		Long: `Make the policies of the command line (owner cli in policy ls) exactly those of a file:
NetworkPolicy (networking.k8s.io/v1) and ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2)
objects of Kubernetes in YAML or JSON. Namespace, Pod and Node objects in the file tell the labels
and addresses of what policies select. Pods of this node are the endpoints: their labels are those
of "ep add --label", or else of the Pod object that has their address. All of the file is checked
before anything is written. Each pod is switched over at once, and open connections that are no
longer allowed end.`,
		Example: `  mustang policy apply -f policies.yaml
  mustang policy apply -f -  # reads: kubectl get networkpolicies,namespaces,pods,nodes -A -o yaml`,
		Args: cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := c.read(cmd.Context(), path)
			if err != nil {
				return err
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			for i := range set.Snapshot.Policies {
				set.Snapshot.Policies[i].JudgesNode = judgeNode
			}
			return c.OnDatapath(cmd.Context(), func(d *datapath.Datapath) error {
				result, err := d.Policies().Apply(cmd.Context(), service.CLI, policies.Set{Snapshot: set.Snapshot, Audit: audit})
				if err != nil {
					return err
				}
				if err := c.print(result); err != nil {
					return err
				}
				return c.remark(d)
			})
		},
	}
	cmd.Flags().StringVarP(&path, "file", "f", "", "`FILE` of policies in YAML or JSON; - is standard input")
	cmd.Flags().BoolVar(&audit, "audit", false, "count what the policies deny (counter audited), and let it pass; policy trace shows it")
	cmd.Flags().BoolVar(&judgeNode, "judge-node", false, "judge the processes of this node too; without it, a pod that a policy selects and its node reach each other")
	return cmd
}

func (c commands) print(r policies.Result) error {
	_, err := fmt.Fprintf(c.Stdout, "policies: %d added, %d updated, %d deleted, %d unchanged\n", r.Added, r.Updated, r.Deleted, r.Unchanged)
	return err
}

// remark says that policies are only audited, and warns of those that select no pod of this node.
func (c commands) remark(d *datapath.Datapath) error {
	all, err := d.Policies().List()
	if err != nil {
		return err
	}
	if len(all) > 0 && all[0].Audited {
		if _, err := fmt.Fprintln(c.Stdout, auditedOnly); err != nil {
			return err
		}
	}
	const named = 3
	var idle []string
	for _, p := range all {
		if p.Pods == 0 && p.Owner == service.CLI {
			idle = append(idle, p.String())
		}
	}
	if len(idle) == 0 {
		return nil
	}
	names := strings.Join(idle[:min(named, len(idle))], ", ")
	if more := len(idle) - named; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	_, err = fmt.Fprintf(c.Stderr, "mustang: no pod of this node is selected by %s\n", names)
	return err
}

// auditedOnly is what commands say of policies that are only audited.
const auditedOnly = "audited only: what the policies deny passes"

// read reads a file, and writes what it leaves out to stderr. It waits for a terminal or a pipe no longer than ctx lasts.
func (c commands) read(ctx context.Context, path string) (set manifest.Set, err error) {
	if path == "" {
		return set, cli.Usage(errors.New("--file is missing"))
	}
	name := path
	if path == "-" {
		name = "standard input"
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		in := c.Stdin
		if path != "-" {
			file, openErr := os.Open(path)
			if openErr != nil {
				err = openErr
				return
			}
			defer file.Close()
			in = file
		}
		if set, err = manifest.Read(in); err == nil {
			err = set.Snapshot.Validate()
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	select {
	case <-done:
		for _, note := range set.Notes {
			fmt.Fprintf(c.Stderr, "mustang: %s: %s\n", name, note)
		}
		return set, err
	case <-ctx.Done():
		return manifest.Set{}, fmt.Errorf("%s: interrupted", name)
	}
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
}

func (c commands) list() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List policies in the order in which they are asked",
		Long: `List policies in the order in which they are asked. DIRECTIONS are those in which a policy has
a say about the pods that it selects. PODS is how many of this node's pods those are; with 0, the policy
has no effect here. MODE "audited" means that what policies deny passes (policy apply --audit).`,
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
				Ingress: p.Concerns(policy.Ingress), Egress: p.Concerns(policy.Egress), Pods: p.Pods, Audited: p.Audited,
			}
			list = append(list, item)
			mode := "enforced"
			if item.Audited {
				mode = "audited"
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
Those of other owners stay.`,
		Example: `  mustang policy delete default/deny-all
  mustang policy delete baseline`,
		Args: cli.Arguments("[NAMESPACE/NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) != all {
				return cli.Usage(errors.New("name a policy by NAMESPACE/NAME or NAME, or say --all"))
			}
			is, none := func(policy.Policy) bool { return true }, errors.New("there are no policies")
			if !all {
				namespace, name, ok := strings.Cut(args[0], "/")
				if !ok {
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
				if result.Deleted == 0 {
					return none
				}
				return c.print(result)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "delete all policies of the command line")
	return cmd
}
