// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
)

// linksOptions are the flags of mustang links.
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
	cli.AddFormats(cmd, &o.format, "tree", "table", "wide", "json", "svg")
	cli.CompleteFlag(cmd, "lab", c.labNames)
	return cmd
}

func (c *config) showLinks(o linksOptions) error {
	snapshot, err := linkinfo.Take()
	if err != nil {
		return err
	}
	defer snapshot.Close()
	namespaces, err := c.namespaces(o)
	defer func() {
		for _, ns := range namespaces {
			_ = ns.Close()
		}
	}()
	if err != nil {
		return err
	}
	var inventories []linkinfo.Inventory
	for _, ns := range namespaces {
		i, err := takeInventory(snapshot, ns)
		if err != nil {
			return err
		}
		inventories = append(inventories, i)
	}
	switch {
	case o.format == "table", o.format == "wide":
		return linkinfo.WriteTable(c.Stdout, inventories)
	case o.format == "tree":
		return linkinfo.WriteTree(c.Stdout, inventories)
	case o.format == "svg":
		return linkinfo.WriteSVG(c.Stdout, inventories)
	case o.all || o.lab != "":
		return linkinfo.WriteAllJSON(c.Stdout, inventories)
	}
	return linkinfo.WriteJSON(c.Stdout, inventories[0])
}

// namespaces opens the namespaces that the flags select, and on an error the ones opened so far.
func (c *config) namespaces(o linksOptions) (all []*netns.Namespace, err error) {
	if o.lab != "" {
		info, err := c.findLab(o.lab)
		if err != nil {
			return nil, err
		}
		for _, place := range c.store().Places(info) {
			ns, err := c.store().Enter(info, place)
			if err != nil {
				return all, err
			}
			all = append(all, ns)
		}
		return all, nil
	}
	current, err := cli.OpenNamespace(o.netns)
	if err != nil {
		return nil, err
	}
	all = []*netns.Namespace{current}
	if !o.all {
		return all, nil
	}
	own, err := current.Inode()
	if err != nil {
		return all, err
	}
	names, err := netns.List("")
	for _, name := range names {
		ns, err := cli.OpenNamespace(name)
		if err != nil {
			continue // names can be stale, and namespaces end meanwhile
		}
		if inode, err := ns.Inode(); err != nil || inode == own {
			_ = ns.Close()
			continue
		}
		all = append(all, ns)
	}
	return all, err
}

// takeInventory reads the links of a namespace with their programs.
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
			l.Programs = l.Programs[:0]
			for _, program := range programs {
				l.Programs = append(l.Programs, linkinfo.Program(program))
			}
		}
		return nil
	})
	if err != nil {
		return i, fmt.Errorf("query programs in network namespace %q: %w", ns.Name(), err)
	}
	return i, nil
}
