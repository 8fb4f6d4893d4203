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

func completeBench(cmd *cobra.Command) {
	cmd.ValidArgsFunction = cli.Words(suites.Names)
	cli.CompleteFlag(cmd, "workload", load.Workloads)
	cli.CompleteFlag(cmd, "direction", cli.Fixed("forward", "reverse", "both"))
	engines := []string{engine.Native}
	for _, e := range engine.List() {
		engines = append(engines, e.Name)
	}
	cli.CompleteFlag(cmd, "engine", cli.Fixed(engines...))
	cli.CompleteFlag(cmd, "only", func() []string { return rowIDs(cmd.Flags().Args()...) })
}

// rowIDs returns the IDs of the rows of suites, by default of the usual suite. Unknown suites are ignored.
func rowIDs(names ...string) (ids []string) {
	if len(names) == 0 {
		names = []string{suites.Default}
	}
	list, _ := suites.Lookup(names...)
	for _, s := range list {
		for _, p := range s.Paths {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

func completeExplain(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return cli.Words(func() []string { return append(rowIDs(), suites.Names()...) })(cmd, nil, begun)
		case 1:
			return cli.Words(func() []string { return rowIDs(args[0]) })(cmd, nil, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cli.CompleteFlag(cmd, "against", func() []string {
		args := cmd.Flags().Args()
		return rowIDs(args[:max(len(args)-1, 0)]...)
	})
}

func completeLabUp(cmd *cobra.Command) {
	cmd.ValidArgsFunction = cli.Word(func() (names []string) {
		for _, t := range lab.Topologies() {
			if !cmd.Flags().Changed("file") {
				names = append(names, t.Name)
			}
		}
		return names
	})
	_ = cmd.MarkFlagFilename("file", "yaml", "yml") // it has the flag
	cli.CompleteFlag(cmd, "link", cli.Fixed(append(linkNames(), lab.LinkHost, lab.LinkHostBridge)...))
	cli.CompleteFlag(cmd, "datapath", cli.Fixed(lab.DatapathKernel, lab.DatapathEBPF))
	cli.CompleteFlag(cmd, "via", cli.Fixed(lab.ViaNone, lab.ViaIPTables, lab.ViaNFTables, lab.ViaIPVS, lab.ViaEBPFTC,
		lab.ViaEBPFSocket))
	cli.CompleteFlag(cmd, "overlay", cli.Fixed(overlays...))
}

var overlays = []string{lab.OverlayNone, lab.OverlayVXLAN, lab.OverlayBridgedVeth, lab.OverlayBridgedInternal}

func (c *config) labNames() (names []string) {
	infos, _ := c.store().List()
	for _, info := range infos {
		names = append(names, info.Name)
	}
	return names
}

func (c *config) labPlaces(name string) (places []string) {
	if info, err := c.store().Find(name); err == nil {
		places = c.store().Places(info)
	}
	return places
}
