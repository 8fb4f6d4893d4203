// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/podlink"
)

type unixStat = syscall.Stat_t

// since are the versions of the CNI specification that have a verb, where not all have.
var since = map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

// accept returns the parameters of a verb, or the reason why the plugin does it alone: it is invalid, and the plugin has the
// words for that, or this process would not do the same.
func (s *Server) accept(c *Call, verb string) (r cni.Request, err error) {
	env := c.Environment
	r = cni.Request{
		ContainerID: env["CNI_CONTAINERID"], IfName: env["CNI_IFNAME"], Netns: env["CNI_NETNS"], Args: env["CNI_ARGS"], Path: env["CNI_PATH"],
		Config: c.Config,
	}
	if c.Version != s.Version || c.Layout != cni.Layout() {
		return r, fmt.Errorf("the plugin is version %s with layout %s", c.Version, c.Layout)
	}
	same, err := s.samePlace(c)
	if err != nil {
		return r, err
	}
	if err := s.acceptConfig(verb, r.Config, same); err != nil {
		return r, err
	}
	onPod := verb == "ADD" || verb == "DEL" || verb == "CHECK"
	switch {
	case env["CNI_PATH"] == "" || env["CNI_NETNS_OVERRIDE"] != "":
		return r, errors.New("CNI_PATH or CNI_NETNS_OVERRIDE")
	case onPod && (utils.ValidateContainerID(r.ContainerID) != nil || utils.ValidateInterfaceName(r.IfName) != nil):
		return r, errors.New("invalid container or interface")
	case !onPod && verb != "GC" && verb != "STATUS":
		return r, fmt.Errorf("verb %q", verb)
	case onPod && c.Netns < 0 && (verb != "DEL" || !same):
		return r, errors.New("no network namespace")
	case !same && verb == "GC":
		return r, errors.New("paths of network namespaces")
	}
	if !onPod || c.Netns < 0 {
		return r, nil
	}
	r.Pod, err = netns.Receive(c.Netns, r.Netns)
	if err != nil {
		return r, err
	}
	if inode, err := r.Pod.Inode(); err != nil || fmt.Sprintf("net:[%d]", inode) == s.network {
		c.Netns = -1
		return r, errors.Join(err, errors.New("the network namespace of the host"), r.Pod.Close())
	}
	return r, nil
}

// samePlace reports whether the plugin is in this process's mount namespace too. The error says that it has another network
// namespace or other directories.
func (s *Server) samePlace(c *Call) (bool, error) {
	theirs := cni.Plugin{
		StateDir: c.Environment["MUSTANG_CNI_STATE_DIR"], RunDir: c.Environment["MUSTANG_CNI_RUN_DIR"],
		BPFRoot: c.Environment["MUSTANG_BPF_ROOT"], Cgroup: c.Environment["MUSTANG_CNI_CGROUP"],
	}
	if !slices.Equal(directories(theirs), s.directories()) || bpfRoot(theirs) != bpfRoot(s.Plugin) || theirs.Cgroup != s.Plugin.Cgroup {
		return false, errors.New("the plugin has other directories")
	}
	proc := fmt.Sprintf("/proc/%d/", c.PID)
	network, err := os.Readlink(proc + "ns/net")
	if err != nil {
		return false, err
	}
	if network != s.network {
		return false, errors.New("the plugin is in another network namespace")
	}
	mounts, err := os.Readlink(proc + "ns/mnt")
	if err != nil || mounts == s.mounts {
		return err == nil, err
	}
	return false, s.sameDirectories(proc + "root")
}

// sameDirectories returns an error unless the directories of the plugin are the same ones below the root of its mount namespace.
func (s *Server) sameDirectories(root string) error {
	group, err := s.Plugin.Cgroup, error(nil)
	if group == "" {
		if group, err = cgroup.Root(); err != nil {
			return err
		}
	}
	for _, dir := range append(s.directories(), group) {
		here, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if there, err := os.Stat(root + dir); err != nil || !os.SameFile(here, there) {
			return errors.Join(err, fmt.Errorf("%s is another directory in the plugin's mount namespace", dir))
		}
	}
	return nil
}

// directories are those that the plugin and this process must share.
func (s *Server) directories() []string { return directories(s.Plugin) }

func directories(p cni.Plugin) []string {
	return []string{
		cmp.Or(p.StateDir, cni.DefaultStateDir), cmp.Or(p.RunDir, cni.DefaultRunDir),
		filepath.Dir(bpfRoot(p)), // the datapath may not exist yet
	}
}

func bpfRoot(p cni.Plugin) string { return cmp.Or(p.BPFRoot, objects.DefaultRoot) }

// acceptConfig returns an error for configurations that the plugin refuses, and for those that run a program or use a
// socket of the host, unless this process sees the same files.
func (s *Server) acceptConfig(verb string, config []byte, same bool) error {
	head := netconf.ParseHead(config)
	if head.Type == netconf.LoopbackType || !slices.Contains(cni.Versions(), head.CNIVersion) || utils.ValidateNetworkName(head.Name) != nil {
		return errors.New("type, version or name")
	}
	if head.Delegates() {
		return fmt.Errorf("IPAM plugin %q", head.IPAM.Type)
	}
	if first := since[verb]; first != "" {
		if has, err := version.GreaterThanOrEqualTo(head.CNIVersion, first); err != nil || !has {
			return fmt.Errorf("%s in version %s", verb, head.CNIVersion)
		}
	}
	if mode, err := podlink.Lookup(head.Link); err == nil && mode.Traits().Needs == podlink.NeedsOpenVSwitch && !same {
		return fmt.Errorf("link %q: its database", head.Link)
	}
	return nil
}

func inodeOf(path string) (uint64, error) {
	var stat unix.Stat_t
	err := unix.Lstat(path, &stat)
	return stat.Ino, err
}
