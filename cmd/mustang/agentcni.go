// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"mustang/internal/cni"
	"mustang/internal/cni/install"
	"mustang/internal/cni/server"
)

// serveCNI attaches and detaches pods for the CNI plugin until ctx ends. Without a socket the plugin does so itself, so that
// is no error.
func (c *config) serveCNI(ctx context.Context, o server.Options) error {
	if o.Socket == nothing {
		return nil
	}
	o.Plugin = cni.Plugin{
		StateDir: c.Getenv("MUSTANG_CNI_STATE_DIR"), RunDir: c.Getenv("MUSTANG_CNI_RUN_DIR"), BPFRoot: c.BPFRoot,
		Cgroup: c.Getenv("MUSTANG_CNI_CGROUP"), Await: o.Plugin.Await,
	}
	s, err := server.Listen(o)
	if err != nil {
		o.Log.Error("no pod can be attached whose configuration has it wait for the agent", "error", err)
		return nil
	}
	return s.Run(ctx)
}

// ownPlugin returns the file of the plugin that belongs to this program.
func ownPlugin() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return install.FindPlugin(self)
}
