// SPDX-License-Identifier: Apache-2.0

// Command mustang-cni is a CNI plugin: it plugs containers into a network by any of
// Mustang's link modes, and gives them services in eBPF. Container runtimes run it;
// see docs/cni.md.
//
// A process lives for milliseconds: it does not look again and again for the CPU limit
// of its cgroup.
//
//go:debug updatemaxprocs=0
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"mustang/internal/cni"
)

func main() {
	plugin := &cni.Plugin{
		StateDir: os.Getenv("MUSTANG_CNI_STATE_DIR"), RunDir: os.Getenv("MUSTANG_CNI_RUN_DIR"),
		BPFRoot: os.Getenv("MUSTANG_BPF_ROOT"), Cgroup: os.Getenv("MUSTANG_CNI_CGROUP"), Stderr: os.Stderr,
	}
	// Until a configuration has been read the newest is spoken.
	failure := failure{CNIVersion: version.Current()}
	spoken := func(version string) { failure.CNIVersion = version }
	failure.Error = skel.PluginMainFuncsWithError(verbs(plugin, spoken), versions(), "CNI plugin "+cni.PluginType)
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
