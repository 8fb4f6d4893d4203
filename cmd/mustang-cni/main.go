// SPDX-License-Identifier: Apache-2.0

// Command mustang-cni is a CNI plugin. It attaches containers to a network with any of Mustang's link modes, and gives
// them access to services in eBPF. Container runtimes run it; see docs/cni.md. Under the name loopback it sets up the
// loopback device.
//
// A process lives for milliseconds, so it does not update GOMAXPROCS from the CPU limit of its cgroup.
//
//go:debug updatemaxprocs=0
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
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
