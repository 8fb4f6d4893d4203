// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench/engine"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
)

// completeBench completes what bench takes: suites, rows of those that are named, workloads and engines.
func completeBench(cmd *cobra.Command) {
	cmd.ValidArgsFunction = cli.Words(suites.Names)
	cli.CompleteFlag(cmd, "workload", load.Workloads)
	cli.CompleteFlag(cmd, "direction", cli.Fixed("forward", "reverse", "both"))
	cli.CompleteFlag(cmd, "engine", func() []string {
		names := []string{engine.Native}
		for _, e := range engine.List() {
			names = append(names, e.Name)
		}
		return names
	})
	cli.CompleteFlag(cmd, "only", func() []string {
		named := cmd.Flags().Args()
		if len(named) == 0 {
			named = []string{suites.Default}
		}
		return rowIDs(named...)
	})
}

// rowIDs returns the IDs of the rows of suites, each once; of suites that there are not, none.
func rowIDs(names ...string) []string {
	list, err := suites.Lookup(names...)
	if err != nil {
		return nil
	}
	var ids []string
	for _, s := range list {
		for _, p := range s.Paths {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// completeExplain completes a row of the usual suite, or a suite and its row.
func completeExplain(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return cli.Words(func() []string { return append(rowIDs(suites.Default), suites.Names()...) })(cmd, nil, begun)
		case 1:
			return cli.Words(func() []string { return rowIDs(args[0]) })(cmd, nil, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cli.CompleteFlag(cmd, "against", func() []string {
		if args := cmd.Flags().Args(); len(args) == 2 {
			return rowIDs(args[0])
		}
		return rowIDs(suites.Default)
	})
}

// completeLabUp completes topologies and the words of flags.
func completeLabUp(cmd *cobra.Command) {
	cmd.ValidArgsFunction = cli.Word(func() []string {
		var names []string
		if cmd.Flags().Changed("file") {
			return names
		}
		for _, t := range lab.Topologies() {
			names = append(names, t.Name)
		}
		return names
	})
	if err := cmd.MarkFlagFilename("file", "yaml", "yml"); err != nil {
		panic(err)
	}
	cli.CompleteFlag(cmd, "link", func() []string { return append(linkNames(), lab.LinkHost, lab.LinkHostBridge) })
	cli.CompleteFlag(cmd, "datapath", cli.Fixed(lab.DatapathKernel, lab.DatapathEBPF))
	cli.CompleteFlag(cmd, "via", cli.Fixed(lab.ViaNone, lab.ViaIPTables, lab.ViaNFTables, lab.ViaIPVS, lab.ViaEBPFTC,
		lab.ViaEBPFSocket))
	cli.CompleteFlag(cmd, "overlay", cli.Fixed(lab.OverlayNone, lab.OverlayVXLAN, lab.OverlayBridgedVeth,
		lab.OverlayBridgedInternal))
}

// labNames returns the names of the labs that there are, of whom the user may read.
func (c *config) labNames() []string {
	infos, err := c.store().List()
	if err != nil {
		return nil
	}
	var names []string
	for _, info := range infos {
		names = append(names, info.Name)
	}
	return names
}

// labPlaces returns the places of a lab, or of the only one if the name is empty.
func (c *config) labPlaces(name string) []string {
	info, err := c.store().Find(name)
	if err != nil {
		return nil
	}
	return c.store().Places(info)
}
