// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
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

type commands struct{ *cli.Config }

func (c commands) apply() *cobra.Command {
	var files []string
	var audit, judgeNode, dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Replace the policies of the command line with the policies of files",
		Long: `Replace the policies of the command line (owner cli in policy ls) with the policies of all files:
NetworkPolicy (networking.k8s.io/v1) and ClusterNetworkPolicy (policy.networking.k8s.io/v1beta1,
v1alpha2) objects of Kubernetes in YAML or JSON. Other policies are deleted, and named (up to 100).

Namespace, Pod and Node objects in the files have the labels and addresses that policies select.
Pods of this node are the endpoints; a Pod object sets the labels and named ports of its endpoint.

All files are checked before anything is written; --dry-run only checks. Each pod changes at once,
and open connections that are no longer allowed end.`,
		Example: `  mustang policy apply -f policies.yaml
  mustang policy apply -f pods.yaml -f policies.yaml --dry-run
  mustang policy apply -f -  # reads: kubectl get networkpolicies,clusternetworkpolicies,namespaces,pods,nodes -A -o yaml`,
		PreRunE: cli.Check(func([]string) error {
			if len(files) == 0 || slices.Contains(files, "") {
				return errors.New("-f FILE is missing")
			}
			return nil
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			set, err := c.readAll(ctx, files)
			if err != nil {
				return err
			}
			for i := range set.Snapshot.Policies {
				set.Snapshot.Policies[i].JudgesNode = judgeNode
			}
			return c.change(ctx, policies.Set{Snapshot: set.Snapshot, Audit: audit}, dryRun)
		}),
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil,
		"`FILE` of policies in YAML or JSON; - is standard input (repeatable)")
	cmd.Flags().BoolVar(&audit, "audit", false,
		"count what the policies deny (counter audited), and let it pass; policy trace shows it")
	cmd.Flags().BoolVar(&judgeNode, "judge-node", false,
		"judge the processes of this node too; without it, a pod that a policy selects and its node reach each other")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the changes, and write nothing")
	return cmd
}

// change applies policies, or only reads what would change, and prints it.
func (c commands) change(ctx context.Context, desired policies.Set, dryRun bool) error {
	judged, judges := false, desired.Policies[0].JudgesNode
	seen, result := would(known{}, desired), policies.Result{Added: len(desired.Policies)} // without a datapath
	do := func(d *datapath.Datapath) error {
		now, err := know(ctx, d)
		if err != nil {
			return err
		}
		judged = slices.ContainsFunc(now.listed, func(p policies.Listed) bool {
			return p.Owner == service.CLI && p.JudgesNode
		})
		if dryRun {
			seen = would(now, desired)
			result, err = d.Policies().Try(ctx, service.CLI, desired)
			return err
		}
		if _, err := d.GuardParents(ctx); err != nil {
			return err
		}
		if result, err = d.Policies().Apply(ctx, service.CLI, desired); err == nil {
			seen, err = d.Policies().Snapshot()
		}
		return err
	}
	var err error
	if dryRun {
		err = c.OnExisting(ctx, nil, do)
	} else {
		err = c.OnDatapath(ctx, do)
	}
	if err != nil {
		return err
	}
	more := ""
	if judges != judged {
		more = map[bool]string{true: ", now judging the node", false: ", no longer judging the node"}[judges]
	}
	err = c.print(result, more)
	if desired.Audit {
		err = errors.Join(err, c.Printf("%s\n", auditedOnly))
	}
	c.warn(seen, desired)
	if dryRun {
		err = errors.Join(err, c.Printf("dry run: nothing was changed\n"))
	}
	return err
}

const named = 100

func (c commands) print(r policies.Result, more string) error {
	if r.Audit != nil {
		more = map[bool]string{true: ", now audited", false: ", now enforced"}[*r.Audit] + more
	}
	for _, name := range r.Gone[:min(named, len(r.Gone))] {
		more += "\ndeleted: " + name
	}
	if n := len(r.Gone) - named; n > 0 {
		more += fmt.Sprintf("\ndeleted: %d more", n)
	}
	_, err := fmt.Fprintf(c.Stdout, "policies: %d added, %d updated, %d deleted, %d unchanged%s\n", r.Added, r.Updated,
		r.Deleted, r.Unchanged, more)
	return err
}

// auditedOnly is the note that commands print if policies are only audited.
const auditedOnly = "audited only: what the policies deny passes"

func (c commands) readAll(ctx context.Context, files []string) (set manifest.Set, err error) {
	var names []string
	for _, path := range files {
		name := cli.InputName(path)
		one, err := cli.ReadInput(ctx, c.Environment, path, func(in io.Reader) (manifest.Set, error) {
			one, err := manifest.ReadFile(in)
			if err == nil {
				err = one.Snapshot.Validate()
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			return one, err
		})
		if err == nil {
			err = set.Add(name, one)
		}
		if err != nil {
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
		return set, fmt.Errorf("no policies in %s; mustang policy delete --all deletes them", of)
	}
	return set, nil
}

func (c commands) warn(s policy.Snapshot, desired policies.Set) {
	s.Policies = desired.Policies
	var idle, unnamed []string
	for i, n := range s.Selected() {
		p := &s.Policies[i]
		if n == 0 {
			idle = append(idle, p.String())
		}
		for _, name := range p.MissingPorts(s.Pods) {
			unnamed = append(unnamed, fmt.Sprintf("%s (port %q)", p, name))
		}
	}
	if len(idle) > 0 {
		fmt.Fprintf(c.Stderr, "mustang: no pod of this node is selected by %s\n", cli.FirstOf(idle, 3))
	}
	if len(unnamed) > 0 {
		fmt.Fprintf(c.Stderr, "mustang: no pod has the named port of %s: Pod objects in the file name ports\n",
			cli.FirstOf(unnamed, 3))
	}
}

// would returns the pods and namespaces after an apply. If an agent follows a cluster, files define no pods here.
func would(now known, want policies.Set) policy.Snapshot {
	s := policy.Snapshot{Node: now.Node, Namespaces: want.Namespaces}
	named, at := map[string]*policy.Pod{}, map[netip.Addr]*policy.Pod{} // pods of the files, which name endpoints
	if now.cluster {
		s.Namespaces = slices.Concat(want.Namespaces, now.Namespaces)
	} else {
		for i := range want.Pods {
			if p := &want.Pods[i]; !p.HostNetwork {
				named[p.Namespace+"/"+p.Name] = p
				for _, a := range p.Addresses {
					at[a.Unmap()] = p
				}
			}
		}
	}
	for _, p := range now.Pods {
		here := !p.HostNetwork && p.Node == now.Node
		if !here && !now.cluster {
			continue // the files have those
		}
		of := named[p.Namespace+"/"+p.Name]
		for _, a := range p.Addresses {
			if strings.HasPrefix(p.Name, "endpoint-") { // the default name
				of = cmp.Or(of, at[a.Unmap()])
			}
		}
		if of != nil && here {
			p.Namespace, p.Name, p.Labels, p.Ports = of.Namespace, of.Name, of.Labels, of.Ports
		}
		s.Pods = append(s.Pods, p)
	}
	for _, p := range want.Pods {
		p.Node = "elsewhere than " + now.Node // pods of this node are endpoints
		s.Pods = append(s.Pods, p)
	}
	return s
}
