// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
)

type linksOptions struct {
	netns, lab, format string
	all                bool
}

func (c *config) links() *cobra.Command {
	var o linksOptions
	cmd := &cobra.Command{
		Use:   "links",
		Short: "Show interfaces and their peers in other namespaces",
		Long: `Show every interface of a network namespace: the information of ip -details, brctl and
ethtool, the peer of each link with its namespace, and the eBPF programs on it.

In a tree, ports are below their bridge, and devices of type macvlan, ipvlan and VLAN below their
parent, also from other namespaces. A namespace is shown by its name below ` + netns.Directory + `,
else by its container or lowest process, else by its id. Needs root.`,
		Example: `  mustang links
  mustang links --netns pod-a -o json
  mustang links --netns /proc/1234/ns/net -o table
  mustang links --all
  mustang links --lab pod-links -o svg`,
		PreRunE: cli.Check(func([]string) error {
			if o.all && o.netns != "" || o.lab != "" && (o.all || o.netns != "") {
				return errors.New("--all, --lab and --netns exclude each other")
			}
			return nil
		}),
		RunE: cli.AsRoot(func(context.Context, []string) error { return c.showLinks(o) }),
	}
	cmd.Flags().StringVar(&o.netns, "netns", "", "network namespace, by name or path (default: the current one)")
	cmd.Flags().BoolVar(&o.all, "all", false, "the current network namespace and all that have a name")
	cmd.Flags().StringVar(&o.lab, "lab", "", "the places of a lab, by its name")
	cli.AddFormats(cmd, &o.format, "tree", "table", "wide", "json", "yaml", "svg")
	cli.CompleteFlag(cmd, "lab", c.labNames)
	return cmd
}

func (c *config) showLinks(o linksOptions) error {
	snapshot, err := linkinfo.Take()
	if err != nil {
		return err
	}
	defer snapshot.Close()
	var inventories []linkinfo.Inventory
	err = c.eachNamespace(o, func(ns *netns.Namespace) error {
		i, err := takeInventory(snapshot, ns)
		inventories = append(inventories, i)
		return err
	})
	switch {
	case err != nil:
		return err
	case o.format == "json":
		return cli.PrintJSON(c.Stdout, linkinfo.JSON(inventories, !o.all && o.lab == ""))
	}
	return map[string]func(io.Writer, []linkinfo.Inventory) error{
		"tree": linkinfo.WriteTree, "table": linkinfo.WriteTable, "wide": linkinfo.WriteTable, "svg": linkinfo.WriteSVG,
	}[o.format](c.Stdout, inventories)
}

func (c *config) eachNamespace(o linksOptions, do func(*netns.Namespace) error) error {
	if o.lab != "" {
		info, err := c.findLab(o.lab)
		if err != nil {
			return err
		}
		for _, place := range c.store().Places(info) {
			ns, err := c.store().Enter(info, place)
			if err != nil {
				return err
			}
			if err := errors.Join(do(ns), ns.Close()); err != nil {
				return err
			}
		}
		return nil
	}
	return cli.WithNamespace(o.netns, func(current *netns.Namespace) error {
		if err := do(current); err != nil || !o.all {
			return err
		}
		own, err := current.Inode()
		if err != nil {
			return err
		}
		names, err := netns.List("")
		for _, name := range names {
			ns, err := cli.OpenNamespace(name)
			if err != nil {
				continue // names can be stale, and namespaces end meanwhile
			}
			if inode, inodeErr := ns.Inode(); inodeErr == nil && inode != own {
				err = do(ns)
			}
			if err = errors.Join(err, ns.Close()); err != nil {
				return err
			}
		}
		return err
	})
}

func takeInventory(snapshot *linkinfo.Snapshot, ns *netns.Namespace) (i linkinfo.Inventory, err error) {
	if i.Namespace, err = snapshot.Info(ns); err != nil {
		return i, err
	}
	if i.Links, err = snapshot.Links(ns); err != nil {
		return i, err
	}
	err = ns.Do(func() error {
		for at := range i.Links {
			l := &i.Links[at]
			programs := objects.ProgramsOn(l.Index, l.Kind)
			for _, p := range l.Programs {
				programs = append(programs, objects.AttachedProgram{Hook: p.Hook, ID: p.ID}.Described())
			}
			l.Programs = cli.Convert(programs, func(p objects.AttachedProgram) linkinfo.Program { return linkinfo.Program(p) })
		}
		return nil
	})
	if err != nil {
		return i, fmt.Errorf("query programs in network namespace %q: %w", ns.Name(), err)
	}
	return i, nil
}
