// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"os"

	"mustang/internal/cni"
	"mustang/internal/cni/install"
	"mustang/internal/cni/server"
	"mustang/internal/netns"
	"mustang/internal/rtnl/unlink"
)

// serveCNI attaches and detaches pods for the CNI plugin until ctx ends. Without a socket the plugin does so itself, so that
// is no error.
func (c *config) serveCNI(ctx context.Context, socket string, host *netns.Namespace, log *slog.Logger) error {
	if socket == nothing {
		return nil
	}
	program, err := ownPlugin()
	if err != nil {
		log.Warn("the CNI plugin works without the agent", "error", err)
		return nil
	}
	s, err := server.Listen(server.Options{
		Socket: socket, Host: host, Program: program, Log: log,
		Plugin: cni.Plugin{
			StateDir: c.Getenv("MUSTANG_CNI_STATE_DIR"), RunDir: c.Getenv("MUSTANG_CNI_RUN_DIR"), BPFRoot: c.BPFRoot,
			Cgroup: c.Getenv("MUSTANG_CNI_CGROUP"), DeleteDevice: unlink.Device,
		},
	})
	if err != nil {
		log.Warn("the CNI plugin works without the agent", "error", err)
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
