// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
)

// verbs are the verbs of the CNI specification.
type verbs struct {
	plugin *cni.Plugin
	// version is the version of the CNI specification in the configuration; the newest
	// supported version before a configuration has been read.
	version string
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
	return signalContext(slow || head.Delegates()), cni.Request{
		ContainerID: args.ContainerID, IfName: args.IfName, Netns: args.Netns, Args: args.Args, Path: args.Path,
		Config: args.StdinData,
	}
}

// signalContext returns the context of a verb. SIGINT and SIGTERM cancel the context of a
// slow verb, which then undoes its changes. A fast verb ignores the signals and
// finishes: the Go runtime starts three threads to receive signals, which makes ADD
// 0.6 ms longer.
func signalContext(slow bool) context.Context {
	signals := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !slow {
		signal.Ignore(signals...)
		return context.Background()
	}
	ctx, _ := signal.NotifyContext(context.Background(), signals...) // until the process ends
	return ctx
}
