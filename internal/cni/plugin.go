// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/datapath"
	"mustang/internal/ipam"
	"mustang/internal/nl"
)

// Where state is kept.
const (
	// DefaultStateDir has the addresses. It outlives a reboot, and they don't.
	DefaultStateDir = "/var/lib/cni/mustang"
	// DefaultRunDir has the records of attachments.
	DefaultRunDir = "/run/mustang/cni"
)

// Plugin is the plugin on one host: the network namespace that the process is in.
type Plugin struct {
	// StateDir, RunDir and BPFRoot are where addresses, records and the datapath are
	// kept; empty for [DefaultStateDir], [DefaultRunDir] and datapath.DefaultRoot.
	StateDir, RunDir, BPFRoot string
	// Cgroup is the directory of the control group whose processes' sockets are
	// translated; empty for all processes.
	Cgroup string
	// Stderr is told what the plugin chose; nil for nothing.
	Stderr io.Writer

	// after is called by tests after each step of ADD, and each note of it in the record.
	after func(step string) error
}

// passed is called after each step.
func (p *Plugin) passed(step string) error {
	if p.after == nil {
		return nil
	}
	return p.after(step)
}

// Request is what a runtime passes beside the verb.
type Request struct {
	// ContainerID and IfName identify the attachment, Netns is the path of the pod's network namespace, or empty.
	ContainerID, IfName, Netns string
	// Config is the network configuration.
	Config []byte
}

func (r Request) owner() Owner { return Owner{ContainerID: r.ContainerID, IfName: r.IfName} }

func or(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

// runRoot is the directory of what all networks have until a reboot.
func (p *Plugin) runRoot() string { return or(p.RunDir, DefaultRunDir) }

func (p *Plugin) runDir(network string) string {
	return filepath.Join(p.runRoot(), network)
}

func (p *Plugin) records(network string) records {
	return records{dir: filepath.Join(p.runDir(network), recordsName)}
}

// addresses opens the addresses of a network.
func (p *Plugin) addresses(network string) (*ipam.Store, error) {
	return ipam.Open(p.stateDir(network))
}

func (p *Plugin) stateDir(network string) string {
	return filepath.Join(or(p.StateDir, DefaultStateDir), network)
}

func (p *Plugin) datapathOptions() datapath.Options { return datapath.Options{Root: p.BPFRoot} }

// say tells what the plugin chose.
func (p *Plugin) say(format string, args ...any) {
	if p.Stderr != nil {
		_, _ = fmt.Fprintf(p.Stderr, PluginType+": "+format+"\n", args...)
	}
}

// done runs a step of ADD.
func (p *Plugin) done(ctx context.Context, name string, step func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := step(); err != nil {
		return err
	}
	return p.passed(name)
}

// bootID identifies the boot of this machine.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// openPod opens the pod's network namespace, which must be another than the host's.
func openPod(path string, host *nl.Namespace) (*nl.Namespace, error) {
	pod, err := nl.OpenNamespace(path)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, oneLine(err), "")
	}
	inside, err := pod.Inode()
	if err == nil {
		var outside uint64
		if outside, err = host.Inode(); err == nil && inside == outside {
			err = types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("CNI_NETNS %s is the plugin's own network namespace", path), "")
		}
	}
	if err != nil {
		_ = pod.Close()
		return nil, err
	}
	return pod, nil
}
