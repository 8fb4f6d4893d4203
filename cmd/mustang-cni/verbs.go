// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
)

// verbs are the verbs of the CNI specification.
type verbs struct {
	plugin *cni.Plugin
	// version is the version of the CNI specification in the configuration; the newest
	// supported version before a configuration has been read.
	version string
	signals *signals
}

func (v *verbs) funcs() skel.CNIFuncs {
	return skel.CNIFuncs{
		Add: v.add, Del: v.run(v.plugin.Del, false), Check: v.run(v.plugin.Check, false),
		GC: v.run(v.plugin.GC, true), Status: v.run(v.plugin.Status, false),
	}
}

func (v *verbs) add(args *skel.CmdArgs) error {
	result, err := v.plugin.Add(v.begin(args, false))
	if err != nil {
		return cni.Coded(err)
	}
	return types.PrintResult(result, v.version)
}

// run returns a verb without a result. slow is set for verbs that can take long.
func (v *verbs) run(verb func(context.Context, cni.Request) error, slow bool) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		if err := verb(v.begin(args, slow)); err != nil {
			return cni.Coded(err)
		}
		return nil
	}
}

// begin returns the context and the request of a verb.
func (v *verbs) begin(args *skel.CmdArgs, slow bool) (context.Context, cni.Request) {
	head := netconf.ParseHead(args.StdinData)
	v.version = head.CNIVersion
	ctx, parsed := v.signals.verb(slow || head.Delegates())
	v.plugin.Parsed = parsed
	return ctx, cni.Request{
		ContainerID: args.ContainerID, IfName: args.IfName, Netns: args.Netns, Args: args.Args, Path: args.Path,
		Config: args.StdinData,
	}
}
