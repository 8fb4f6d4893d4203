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
)

// verbs are those of the CNI spec. They tell which version of it is spoken.
func verbs(plugin *cni.Plugin, spoken func(version string)) skel.CNIFuncs {
	accept := func(args *skel.CmdArgs, long bool) (context.Context, cni.Request) {
		head := cni.HeadOf(args.StdinData)
		spoken(head.CNIVersion)
		request := cni.Request{ContainerID: args.ContainerID, IfName: args.IfName, Netns: args.Netns, Config: args.StdinData}
		return heed(long || head.Delegates()), request
	}
	plain := func(verb func(context.Context, cni.Request) error, long bool) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return coded(verb(accept(args, long))) }
	}
	return skel.CNIFuncs{
		Add: func(args *skel.CmdArgs) error {
			result, err := plugin.Add(accept(args, false))
			if err != nil {
				return coded(err)
			}
			return types.PrintResult(result, cni.HeadOf(args.StdinData).CNIVersion)
		},
		Del: plain(plugin.Del, false), Check: plain(plugin.Check, false),
		GC: plain(plugin.GC, true), Status: plain(plugin.Status, false),
	}
}

// heed returns a context that SIGINT and SIGTERM end, so that a verb undoes what it has
// done, if the verb may take long. What takes milliseconds is finished in spite of
// them: to be told of a signal, the Go runtime starts three threads, which made ADD
// 0.6 ms longer.
func heed(long bool) context.Context {
	caught := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !long {
		signal.Ignore(caught...)
		return context.Background()
	}
	ctx, _ := signal.NotifyContext(context.Background(), caught...) // until the process ends
	return ctx
}

// coded keeps nil from becoming an error of a type.
func coded(err error) error {
	if err == nil {
		return nil
	}
	return cni.Coded(err)
}
