// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"mustang/internal/datapath"
	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// TopologyNode is the name of the topology that others plug pods into, such as CNI
// plugins.
const TopologyNode = "node"

// Outside is where the uplink of a node leads, and OutsideIfName its device there.
const (
	Outside       = outside
	OutsideIfName = "wire"
)

// PluginDirs are where plugins that run in a lab keep what they have to know of it.
// All of it goes with the lab.
type PluginDirs struct {
	// State is below Options.Disk if that is set, Run beside the lab's record.
	State, Run string
	// BPFRoot is where eBPF programs and maps are pinned.
	BPFRoot string
	// Cgroup is the lab's control group; empty if the machine has no cgroup v2.
	Cgroup string
}

// PluginDirs returns where plugins that run in a node keep what they have to know.
func (l *Lab) PluginDirs() PluginDirs {
	run := l.store.pluginDir(l.Options.Name)
	state := l.Options.diskDir()
	if state == "" {
		state = filepath.Join(run, "state")
	}
	return PluginDirs{State: state, Run: run, BPFRoot: l.BPFRoot(), Cgroup: l.cgroup}
}

// diskDir is the lab's directory on the disk; empty if it has none.
func (o Options) diskDir() string {
	if o.Disk == "" {
		return ""
	}
	return filepath.Join(o.Disk, ".mst-"+o.Name)
}

// checkNode refuses what a host without pods can't have.
func checkNode(o Options) error {
	switch {
	case o.Link != LinkHost:
		return optionErrorf("link %s: topology %s has no pods, want %s", o.Link, o.Topology, LinkHost)
	case o.Datapath != DatapathKernel || o.Via != ViaNone:
		return optionErrorf("datapath %s, via %s: topology %s has neither pods nor services", o.Datapath, o.Via, o.Topology)
	case o.overlaid() || o.NAT || o.WireRate != 0 || o.WireDelay != 0:
		return optionErrorf("overlay, nat, wire rate and wire delay: topology %s has one host only", o.Topology)
	case o.Disk != "" && !filepath.IsAbs(o.Disk):
		return optionErrorf("disk %q: want an absolute path", o.Disk)
	}
	return nil
}

// buildNode builds one host with an uplink, and directories for plugins.
func buildNode(_ context.Context, l *Lab) error {
	if err := l.addCgroup(); err != nil {
		return err
	}
	host, err := l.addPlace(Host, hostSysctls)
	if err != nil {
		return err
	}
	if err := l.addUplink(host); err != nil {
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

// AddPod gives a lab of topology node another namespace, with nothing in it but
// loopback, until DeletePod or the lab's end.
func (l *Lab) AddPod(name string) (*nl.Namespace, error) {
	if l.Options.Topology != TopologyNode {
		return nil, fmt.Errorf("lab %s: topology %s has its pods", l.Options.Name, l.Options.Topology)
	}
	if !validName.MatchString(name) || l.namespaces[name] != nil {
		return nil, fmt.Errorf("lab %s: %q is no name for another pod", l.Options.Name, name)
	}
	return l.addNamespace(name)
}

// DeletePod deletes a namespace that AddPod made.
func (l *Lab) DeletePod(name string) error {
	ns, ok := l.namespaces[name]
	if !ok || name == Host || name == Outside {
		return fmt.Errorf("lab %s: no pod %q in it", l.Options.Name, name)
	}
	delete(l.namespaces, name)
	return errors.Join(ns.Close(), nl.DeleteNamespace(namespaceName(l.Options.Name, name)))
}

// PluginPods are the pods that a node's eBPF datapath knows.
type PluginPods struct {
	// Endpoints are the addresses of those whose packets it sees.
	Endpoints []netip.Addr
	// Sockets are the cookies of the namespaces whose sockets alone it sees.
	Sockets []uint64
}

// PluginPods returns the pods that a node's eBPF datapath knows, which is made by
// plugins; none if they made none.
func (l *Lab) PluginPods() (pods PluginPods, err error) {
	dp, err := datapath.OpenExisting(datapath.Options{Root: l.BPFRoot()})
	if errors.Is(err, fs.ErrNotExist) {
		return pods, nil
	}
	if err != nil {
		return pods, err
	}
	defer func() { err = errors.Join(err, dp.Close()) }()
	endpoints, err := dp.Endpoints()
	if err != nil {
		return pods, err
	}
	for _, e := range endpoints {
		pods.Endpoints = append(pods.Endpoints, e.IP)
	}
	pods.Sockets, err = dp.SocketPods()
	return pods, err
}

// removePlugins removes what plugins kept of a lab of that name, also where its
// record can't be read.
func (s Store) removePlugins(name string) error {
	errs := []error{os.RemoveAll(s.pluginDir(name))}
	var info Info
	switch err := readState(s.statePath(name), &info); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return errors.Join(errs...) // a record that can't be read names no directory
	case info.Name == name && info.Disk != "":
		errs = append(errs, os.RemoveAll(info.diskDir()))
	}
	return errors.Join(errs...)
}

// ReferencePlugins is where Debian's package has the reference plugins of CNI.
const ReferencePlugins = "/usr/lib/cni"

// pluginPackage is the package's name.
const pluginPackage = "containernetworking-plugins"

// FindReferencePlugins returns the directory of the reference plugins of CNI. If
// one of them is missing, the error is a *podlink.MissingProgramError.
func FindReferencePlugins(names ...string) (string, error) {
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(ReferencePlugins, name)); err != nil || info.Mode()&0o111 == 0 {
			return "", &podlink.MissingProgramError{Program: filepath.Join(ReferencePlugins, name), Package: pluginPackage}
		}
	}
	return ReferencePlugins, nil
}
