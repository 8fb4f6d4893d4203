// SPDX-License-Identifier: Apache-2.0

package cnibench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"mustang/internal/cni"
	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/cni/server"
	"mustang/internal/lab"
	"mustang/internal/netns"
)

// agent is the part of mustang agent that does the plugin's work.
type agent struct {
	adds   atomic.Int64 // that it has done
	cancel context.CancelFunc
	ended  chan error
}

// startAgent starts an agent for the plugin of a file, in a lab's host, and installs the plugin's client.
func startAgent(host *netns.Namespace, dirs lab.PluginDirs, program string) (*agent, error) {
	if err := os.MkdirAll(filepath.Dir(clientIn(dirs)), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(clientIn(dirs), install.Client(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Symlink(program, filepath.Join(filepath.Dir(clientIn(dirs)), netconf.FullPlugin)); err != nil {
		return nil, err
	}
	a := &agent{ended: make(chan error, 1)}
	s, err := server.Listen(server.Options{
		Socket: socketIn(dirs), Host: host, Plugin: pluginIn(dirs),
		Observe: func(verb string, _ time.Duration, failed bool) {
			if verb == verbAdd && !failed {
				a.adds.Add(1)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, a.cancel = context.WithCancel(context.Background())
	go func() { a.ended <- s.Run(ctx) }()
	return a, nil
}

func (a *agent) stop() {
	a.cancel()
	<-a.ended
}

// did returns an error unless the agent has done a number of ADDs since the last call.
func (a *agent) did(want int) error {
	if got := a.adds.Swap(0); got != int64(want) {
		return fmt.Errorf("the agent did %d of %d %ss", got, want, verbAdd)
	}
	return nil
}

func clientIn(dirs lab.PluginDirs) string { return filepath.Join(dirs.Run, "bin", mustangCNI) }

func socketIn(dirs lab.PluginDirs) string { return filepath.Join(dirs.Run, "agent", "cni.sock") }

// pluginIn returns mustang-cni with the directories of a lab.
func pluginIn(dirs lab.PluginDirs) cni.Plugin {
	return cni.Plugin{
		StateDir: filepath.Join(dirs.State, "mustang"), RunDir: filepath.Join(dirs.Run, "mustang"), BPFRoot: dirs.BPFRoot, Cgroup: dirs.Cgroup,
	}
}
