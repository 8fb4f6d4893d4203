// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"mustang/internal/datapath"
	"mustang/internal/netns"
)

// PluginDirs are the directories of the CNI plugins of a lab. They go with the lab.
type PluginDirs struct {
	// State is below Options.Disk if that is set, Run beside the lab's record.
	State, Run string
	BPFRoot    string // the directory where eBPF programs and maps are pinned
	Cgroup     string // the lab's control group; empty if the machine lacks cgroup v2
}

// PluginDirs returns the directories of plugins in a lab of topology node.
func (l *Lab) PluginDirs() PluginDirs {
	run := l.store.pluginDir(l.Options.Name)
	state := cmp.Or(l.Options.diskDir(), filepath.Join(run, "state"))
	return PluginDirs{State: state, Run: run, BPFRoot: l.BPFRoot(), Cgroup: l.cgroup}
}

func (o Options) diskDir() string {
	if o.Disk == "" {
		return ""
	}
	return filepath.Join(o.Disk, ".mst-"+o.Name)
}

func buildNode(_ context.Context, l *Lab) error {
	host, err := l.addNamespace(Host, hostSysctls...)
	if err != nil {
		return err
	}
	if err := l.addUplink(host, Uplink); err != nil {
		return err
	}
	dirs := l.PluginDirs()
	for _, dir := range []string{dirs.Run, dirs.State} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	return mountBPF(l.store.bpfMount(l.Options.Name))
}

// AddPod adds a namespace with a loopback device to a lab of topology node, until DeletePod or the lab's end.
func (l *Lab) AddPod(name string) (*netns.Namespace, error) {
	if l.Options.Topology != TopologyNode {
		return nil, fmt.Errorf("lab %s: only topology %s takes further pods, not %s", l.Options.Name, TopologyNode,
			l.Options.Topology)
	}
	if !validName.MatchString(name) || l.namespaces[name] != nil {
		return nil, fmt.Errorf("lab %s: name %q of a pod is invalid or in use", l.Options.Name, name)
	}
	return l.addNamespace(name)
}

// DeletePod deletes a namespace that AddPod added.
func (l *Lab) DeletePod(name string) error {
	ns, ok := l.namespaces[name]
	if !ok || name == Host || name == Outside {
		return fmt.Errorf("lab %s: no pod %q", l.Options.Name, name)
	}
	delete(l.namespaces, name)
	return errors.Join(ns.Close(), netns.Delete(namespaceName(l.Options.Name, name)))
}

// PluginPods are the pods in the eBPF datapath of a node.
type PluginPods struct {
	Endpoints []netip.Addr // the addresses of pods whose packets pass eBPF programs
	Sockets   []uint64     // the cookies of the namespaces whose sockets alone pass them
}

// PluginPods returns the pods that plugins added to the node's eBPF datapath; none without a datapath.
func (l *Lab) PluginPods() (pods PluginPods, err error) {
	dp, err := datapath.OpenExisting(datapath.Options{Root: l.BPFRoot()})
	if errors.Is(err, fs.ErrNotExist) {
		return pods, nil
	}
	if err != nil {
		return pods, err
	}
	defer func() { err = errors.Join(err, dp.Close()) }()
	endpoints, err := dp.Endpoints().List(context.Background())
	if err != nil {
		return pods, err
	}
	pods.Endpoints = convert(endpoints, func(e datapath.Endpoint) netip.Addr { return e.IP })
	scopes, err := dp.Sockets().List(context.Background())
	for _, scope := range scopes {
		if scope.Kind == datapath.PodScope {
			pods.Sockets = append(pods.Sockets, scope.Cookie)
		}
	}
	return pods, err
}
