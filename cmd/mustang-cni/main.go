// SPDX-License-Identifier: Apache-2.0

// Command mustang-cni is a CNI plugin. It attaches containers to a network with any of Mustang's link modes, and gives
// them access to services in eBPF. See docs/cni.md. Under the name loopback it sets up the loopback device.
//
// A process lives for milliseconds, so it does not update GOMAXPROCS from the CPU limit of its cgroup.
//
//go:debug updatemaxprocs=0
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
	"mustang/internal/cni/server"
	"mustang/internal/rtnl"
	release "mustang/internal/version"
)

func main() {
	v := &verbs{
		plugin: &cni.Plugin{
			StateDir: os.Getenv("MUSTANG_CNI_STATE_DIR"), RunDir: os.Getenv("MUSTANG_CNI_RUN_DIR"),
			BPFRoot: os.Getenv("MUSTANG_BPF_ROOT"), Cgroup: os.Getenv("MUSTANG_CNI_CGROUP"), Stderr: os.Stderr,
			DeleteDevice: rtnl.DeleteInChild, Await: await,
		},
		version: version.Current(), loopback: filepath.Base(os.Args[0]) == netconf.LoopbackType,
	}
	versions := version.PluginSupports(cni.Versions()...)
	if v.loopback {
		versions = version.All
	}
	about := "CNI plugin " + netconf.PluginType + " " + release.Program()
	if err := skel.PluginMainFuncsWithError(v.funcs(), versions, about); err != nil {
		if err := json.NewEncoder(os.Stdout).Encode(cni.Failure{CNIVersion: v.version, Error: err}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

type verbs struct {
	plugin *cni.Plugin
	// version is the configuration's version of the CNI specification. Before it is read: the newest.
	version  string
	loopback bool // the program name or the type in the configuration is loopback
}

func (v *verbs) funcs() skel.CNIFuncs {
	p := v.plugin
	return skel.CNIFuncs{
		Add: v.add, Del: v.run(p.Del, p.DelLoopback, false), Check: v.run(p.Check, p.CheckLoopback, false),
		GC: v.run(p.GC, nil, true), Status: v.run(p.Status, nil, false),
	}
}

func (v *verbs) add(args *skel.CmdArgs) error {
	ctx, request := v.begin(args, netconf.ParseHead(args.StdinData).Policies == netconf.PoliciesAgent)
	add := func() (*types100.Result, error) { return v.plugin.Add(ctx, request) }
	if v.loopback {
		add = func() (*types100.Result, error) { return v.plugin.AddLoopback(request) }
	}
	result, err := add()
	if err != nil {
		return cni.Coded(err)
	}
	return cni.WriteResult(os.Stdout, result, v.version)
}

// run returns a verb without a result, for a pod or for the loopback device; nil does nothing.
func (v *verbs) run(verb func(context.Context, cni.Request) error, loopback func(cni.Request) error,
	slow bool) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) (err error) {
		ctx, request := v.begin(args, slow)
		switch {
		case !v.loopback:
			err = verb(ctx, request)
		case loopback != nil:
			err = loopback(request)
		}
		if err != nil {
			return cni.Coded(err)
		}
		return nil
	}
}

// begin returns the context and the request of a verb. Fast verbs ignore signals and finish; slow ones end.
func (v *verbs) begin(args *skel.CmdArgs, slow bool) (context.Context, cni.Request) {
	head := netconf.ParseHead(args.StdinData)
	v.version = cmp.Or(head.CNIVersion, "0.1.0") // CNI spec 0.1.0 lacks this key
	v.loopback = v.loopback || head.Type == netconf.LoopbackType
	ctx := context.Background()
	if slow || head.Delegates() {
		ctx, _ = signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM) // until the process ends
	} else {
		signal.Ignore(unix.SIGINT, unix.SIGTERM)
	}
	return ctx, cni.Request{
		ContainerID: args.ContainerID, IfName: args.IfName, Netns: args.Netns, Args: args.Args, Path: args.Path,
		Config: args.StdinData,
	}
}

// await waits until the agent has the policies of the pod in CNI_ARGS in force. The agent may start meanwhile.
func await(ctx context.Context, _, _, _ string) error {
	r := server.Request{Version: release.Program(), Layout: cni.Layout(), Environment: map[string]string{}}
	for _, name := range server.Variables() {
		r.Environment[name] = os.Getenv(name)
	}
	r.Environment["CNI_COMMAND"] = server.Await
	return server.AwaitPolicies(ctx, cmp.Or(os.Getenv(server.SocketVariable), server.DefaultSocket), r)
}
