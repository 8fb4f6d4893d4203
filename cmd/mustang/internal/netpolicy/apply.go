// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
	"mustang/internal/service"
)

func (c commands) apply() *cobra.Command {
	var files []string
	var audit, judgeNode, dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the policies of the command line exactly those of files",
		Long: `Make the policies of the command line (owner cli in policy ls) exactly those of all files:
NetworkPolicy (networking.k8s.io/v1) and ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2)
objects of Kubernetes in YAML or JSON. Others are deleted, and named. Namespace, Pod and Node
objects in the files tell the labels and addresses of what policies select. Pods of this node are
the endpoints: their labels are those of "ep add --label", or else of the Pod object that has their
address. All is checked before anything is written, and --dry-run does no more. Each pod is switched
over at once, and open connections that are no longer allowed end.`,
		Example: `  mustang policy apply -f policies.yaml
  mustang policy apply -f pods.yaml -f policies.yaml --dry-run
  mustang policy apply -f -  # reads: kubectl get networkpolicies,namespaces,pods,nodes -A -o yaml`,
		Args: cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := c.readAll(cmd.Context(), files)
			if err != nil {
				return err
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			for i := range set.Snapshot.Policies {
				set.Snapshot.Policies[i].JudgesNode = judgeNode
			}
			want := policies.Set{Snapshot: set.Snapshot, Audit: audit}
			if dryRun {
				return c.try(cmd.Context(), want)
			}
			return c.OnDatapath(cmd.Context(), func(d *datapath.Datapath) error {
				result, err := d.Policies().Apply(cmd.Context(), service.CLI, want)
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
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "`FILE` of policies in YAML or JSON; - is standard input (repeatable)")
	cmd.Flags().BoolVar(&audit, "audit", false, "count what the policies deny (counter audited), and let it pass; policy trace shows it")
	cmd.Flags().BoolVar(&judgeNode, "judge-node", false, "judge the processes of this node too; without it, a pod that a policy selects and its node reach each other")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "tell what would change, and change nothing")
	return cmd
}

// try tells what would change.
func (c commands) try(ctx context.Context, want policies.Set) error {
	result := policies.Result{Added: len(want.Policies)} // without a datapath
	err := c.OnExisting(ctx, nil, func(d *datapath.Datapath) (err error) {
		result, err = d.Policies().Try(ctx, service.CLI, want)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.print(result); err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.Stdout, "dry run: nothing was changed")
	return err
}

func (c commands) print(r policies.Result) error {
	text := fmt.Sprintf("policies: %d added, %d updated, %d deleted, %d unchanged", r.Added, r.Updated, r.Deleted, r.Unchanged)
	if r.Audit != nil {
		text += map[bool]string{true: ", now audited", false: ", now enforced"}[*r.Audit]
	}
	for _, name := range r.Gone {
		text += "\ndeleted: " + name
	}
	_, err := fmt.Fprintln(c.Stdout, text)
	return err
}

// remark says that policies are only audited, and warns of those that select no pod of this node, and of ports that no pod names.
func (c commands) remark(d *datapath.Datapath) error {
	all, err := d.Policies().List()
	if err != nil {
		return err
	}
	s, err := d.Policies().Snapshot()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(p policies.Listed) bool { return p.Owner != service.CLI })
	if len(all) > 0 && all[0].Audited {
		if _, err := fmt.Fprintln(c.Stdout, auditedOnly); err != nil {
			return err
		}
	}
	var idle []string
	for _, p := range all {
		if p.Pods == 0 {
			idle = append(idle, p.String())
		}
	}
	c.warn("no pod of this node is selected by ", idle)
	var unnamed []string
	for _, p := range all {
		for _, name := range p.MissingPorts(s.Pods) {
			unnamed = append(unnamed, fmt.Sprintf("%s (port %q)", p, name))
		}
	}
	c.warn("no pod has the named port of ", unnamed)
	return nil
}

// warn writes a line to stderr that names some of a list, unless that is empty.
func (c commands) warn(of string, list []string) {
	const named = 3
	if len(list) == 0 {
		return
	}
	names := strings.Join(list[:min(named, len(list))], ", ")
	if more := len(list) - named; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	fmt.Fprintf(c.Stderr, "mustang: %s%s\n", of, names)
}

// auditedOnly is what commands say of policies that are only audited.
const auditedOnly = "audited only: what the policies deny passes"

// readAll reads files as one, and writes what it leaves out to stderr.
func (c commands) readAll(ctx context.Context, files []string) (set manifest.Set, err error) {
	if len(files) == 0 || slices.Contains(files, "") {
		return set, cli.Usage(errors.New("--file is missing"))
	}
	var names []string
	for _, path := range files {
		name := cli.InputName(path)
		one, err := cli.ReadInput(ctx, c.Environment, path, func(in io.Reader) (manifest.Set, error) {
			one, err := read(in)
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			return one, err
		})
		if err != nil {
			return set, err
		}
		if err := set.Add(name, one); err != nil {
			return set, err
		}
		names = append(names, name)
	}
	for _, note := range set.Notes {
		fmt.Fprintf(c.Stderr, "mustang: %s\n", note)
	}
	of := strings.Join(names, ", ")
	if err := set.Snapshot.Validate(); err != nil {
		return set, fmt.Errorf("%s: %w", of, err)
	}
	if len(set.Snapshot.Policies) == 0 {
		return set, fmt.Errorf("%s has no policy; mustang policy delete --all deletes them", of)
	}
	return set, nil
}

// read reads the objects of a file.
func read(in io.Reader) (set manifest.Set, err error) {
	if set, err = manifest.ReadFile(in); err != nil {
		return set, err
	}
	return set, set.Snapshot.Validate()
}

// missing returns why policies to delete are not there: they have another owner, or their name lacks its namespace.
func missing(d *datapath.Datapath, namespace, name string) error {
	all, err := d.Policies().List()
	if err != nil {
		return err
	}
	full := strings.TrimPrefix(namespace+"/"+name, "/")
	text := fmt.Sprintf("policy %s does not exist", full)
	for _, p := range all {
		switch {
		case p.Namespace == namespace && p.Name == name:
			text = fmt.Sprintf("policy %s is of owner %s, which deletes it", full, p.Owner)
			if p.Owner == service.Agent {
				text = fmt.Sprintf("policy %s is of owner agent: delete it in the cluster, by kubectl delete %s", full, object(p.Policy))
			}
			return errors.New(text)
		case namespace == "" && p.Name == name && p.Owner == service.CLI:
			text += fmt.Sprintf("; NAMESPACE/NAME is the form for a NetworkPolicy, such as %s/%s", p.Namespace, p.Name)
			return errors.New(text)
		}
	}
	return errors.New(text)
}

// object returns a policy as kubectl names it.
func object(p policy.Policy) string {
	if p.Tier == policy.Namespaced {
		return fmt.Sprintf("networkpolicy -n %s %s", p.Namespace, p.Name)
	}
	return "clusternetworkpolicy " + p.Name
}
