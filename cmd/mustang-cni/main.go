// SPDX-License-Identifier: Apache-2.0

// Command mustang-cni is a CNI plugin: it plugs containers into a network by any of
// Mustang's link modes, and gives them services in eBPF. Container runtimes run it;
// see docs/cni.md.
//
// A process lives for milliseconds: it does not look, nor look again and again, for
// the CPU limit of its cgroup, for which it would read all mounts of the host.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"mustang/internal/cni"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	plugin := &cni.Plugin{
		StateDir: os.Getenv("MUSTANG_CNI_STATE_DIR"), RunDir: os.Getenv("MUSTANG_CNI_RUN_DIR"),
		BPFRoot: os.Getenv("MUSTANG_BPF_ROOT"), Cgroup: os.Getenv("MUSTANG_CNI_CGROUP"), Stderr: os.Stderr,
	}
	// Until a configuration has been read the newest is spoken.
	failure := failure{CNIVersion: version.Current()}
	spoken := func(version string) { failure.CNIVersion = version }
	failure.Error = skel.PluginMainFuncsWithError(verbs(ctx, plugin, spoken), versions(), "CNI plugin "+cni.PluginType)
	if failure.Error != nil {
		if err := json.NewEncoder(os.Stdout).Encode(failure); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

// failure is the result of a verb that fails (CNI spec 1.1.0, section 5): the library's
// error lacks the version.
type failure struct {
	CNIVersion string `json:"cniVersion"`
	*types.Error
}

// versions are those of the CNI spec that the plugin speaks.
func versions() version.PluginInfo {
	return version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// verbs are those of the CNI spec. They tell which version of it is spoken.
func verbs(ctx context.Context, plugin *cni.Plugin, spoken func(version string)) skel.CNIFuncs {
	request := func(args *skel.CmdArgs) cni.Request {
		spoken(cni.VersionOf(args.StdinData))
		return cni.Request{ContainerID: args.ContainerID, IfName: args.IfName, Netns: args.Netns, Config: args.StdinData}
	}
	plain := func(verb func(context.Context, cni.Request) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return coded(verb(ctx, request(args))) }
	}
	return skel.CNIFuncs{
		Add: func(args *skel.CmdArgs) error {
			result, err := plugin.Add(ctx, request(args))
			if err != nil {
				return coded(err)
			}
			return types.PrintResult(result, cni.VersionOf(args.StdinData))
		},
		Del: plain(plugin.Del), Check: plain(plugin.Check), GC: plain(plugin.GC), Status: plain(plugin.Status),
	}
}

// coded keeps nil from becoming an error of a type.
func coded(err error) error {
	if err == nil {
		return nil
	}
	return cni.Coded(err)
}
