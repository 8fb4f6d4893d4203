// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mustang/internal/datapath"
	"mustang/internal/nl"
)

// linksOptions are the flags of mustang links.
type linksOptions struct {
	netns, format string
	all           bool
}

func (c *config) links() *cobra.Command {
	var o linksOptions
	cmd := &cobra.Command{
		Use:   "links",
		Short: "Show interfaces, and what they are joined to in other namespaces",
		Long: `Show every interface of a network namespace: what ip -details, brctl and ethtool tell,
the other end of each link with the namespace that it is in, and the eBPF programs on it.

As a tree, ports stand below their bridge, and macvlan, ipvlan and VLAN devices below the
device that they sit on, those of other namespaces too. A namespace is called by its name
below ` + nl.Directory + `, else by its container or lowest process, else by its id. Speeds of
virtual devices are what their drivers say; nothing holds the devices to them. The program
at the peer of a netkit pair is shown at the primary device. Needs root.`,
		Example: `  mustang links
  mustang links --netns pod-a -o json
  mustang links --netns /proc/1234/ns/net -o table
  mustang links --all`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			return c.showLinks(o)
		},
	}
	cmd.Flags().StringVar(&o.netns, "netns", "", "network namespace, by name or path (default: the current one)")
	cmd.Flags().BoolVar(&o.all, "all", false, "the current network namespace and all that have a name")
	cmd.Flags().StringVarP(&o.format, "output", "o", "tree", "output format: tree, table or json")
	return cmd
}

func (o linksOptions) check() error {
	if !slices.Contains([]string{"tree", "table", "json"}, o.format) {
		return usage(fmt.Errorf("output %q: want tree, table or json", o.format))
	}
	if o.all && o.netns != "" {
		return usage(errors.New("--all and --netns exclude each other"))
	}
	return nil
}

// inventory is what is in one network namespace.
type inventory struct {
	place    nl.Place
	links    []nl.Link
	programs map[int][]datapath.AttachedProgram // by the links' indexes
}

func (c *config) showLinks(o linksOptions) error {
	census, err := nl.TakeCensus()
	if err != nil {
		return err
	}
	defer census.Close()
	namespaces, err := o.namespaces()
	if err != nil {
		return err
	}
	defer func() {
		for _, ns := range namespaces {
			_ = ns.Close()
		}
	}()
	var inventories []inventory
	for _, ns := range namespaces {
		i, err := takeInventory(census, ns)
		if err != nil {
			return err
		}
		inventories = append(inventories, i)
	}
	switch {
	case o.format == "table":
		return printLinksTable(c.stdout, inventories)
	case o.format == "tree":
		return printLinksTree(c.stdout, inventories)
	case o.all:
		return printJSON(c.stdout, allLinksJSON(inventories))
	}
	return printJSON(c.stdout, linksDocument{schema, newNamespaceJSON(inventories[0])})
}

// namespaces opens the namespaces that are asked for.
func (o linksOptions) namespaces() (_ []*nl.Namespace, err error) {
	if o.netns != "" {
		path := o.netns
		if !strings.Contains(path, "/") {
			path = filepath.Join(nl.Directory, path)
		}
		ns, err := nl.OpenNamespace(path)
		return []*nl.Namespace{ns}, err
	}
	current, err := nl.CurrentNamespace()
	if err != nil || !o.all {
		return []*nl.Namespace{current}, err
	}
	own, err := current.Inode()
	if err != nil {
		return nil, errors.Join(err, current.Close())
	}
	names, err := nl.ListNamespaces("")
	if err != nil {
		return nil, errors.Join(err, current.Close())
	}
	all := []*nl.Namespace{current}
	for _, name := range names {
		// A name may be left without a namespace, and some go while we look.
		ns, err := nl.OpenNamespace(filepath.Join(nl.Directory, name))
		if err != nil {
			continue
		}
		if inode, err := ns.Inode(); err != nil || inode == own {
			_ = ns.Close()
			continue
		}
		all = append(all, ns)
	}
	return all, nil
}

func takeInventory(census *nl.Census, ns *nl.Namespace) (inventory, error) {
	place, err := census.Place(ns)
	if err != nil {
		return inventory{}, err
	}
	links, err := census.Links(ns)
	if err != nil {
		return inventory{}, err
	}
	programs, err := datapath.Attached(ns, links)
	return inventory{place: place, links: links, programs: programs}, err
}
