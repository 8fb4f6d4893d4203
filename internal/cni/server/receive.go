// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

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

// Limits of a request.
const (
	requestTime  = 5 * time.Second // how long the plugin may take to send its request, or to take an answer
	answerPacket = 32 << 10        // bytes of text in a packet: it fits into any socket's buffer
)

// Call is a request that an agent has received.
type Call struct {
	Request
	PID   int // the plugin's process in this PID namespace; 0: not visible
	Netns int // a descriptor of the pod's network namespace; -1 if the plugin sent none

	conn *net.UnixConn
}

// Receive receives the request of a connection, which it takes over. It declines a malformed request. The error matches
// unix.EPERM if the plugin is not root.
func Receive(conn *net.UnixConn) (_ *Call, err error) {
	c := &Call{Netns: -1, conn: conn}
	defer func() {
		if errors.Is(err, errForm) {
			_ = c.Decline()
		}
		if err != nil {
			c.Close()
		}
	}()
	if c.PID, err = rootPeer(conn); err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return nil, err
	}
	packet, control := make([]byte, MaxRequest), make([]byte, unix.CmsgSpace(4))
	n, m, flags, _, err := conn.ReadMsgUnix(packet, control)
	if err != nil {
		return nil, err
	}
	if err := c.takeNetns(control[:m]); err != nil {
		return nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return nil, errForm
	}
	if c.Request, err = decode(packet[:n]); err != nil {
		return nil, err
	}
	return c, conn.SetReadDeadline(time.Time{})
}

func (c *Call) takeNetns(control []byte) error {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return err
	}
	for _, message := range messages {
		descriptors, err := unix.ParseUnixRights(&message)
		if err != nil {
			return errForm
		}
		for _, fd := range descriptors {
			if c.Netns < 0 {
				c.Netns = fd
			} else {
				_ = unix.Close(fd)
			}
		}
	}
	return nil
}

// Context returns a context that ends with ctx, or once the plugin has ended or given up.
func (c *Call) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = c.conn.Read(make([]byte, 1))
		cancel()
	}()
	return ctx, cancel
}

// Decline leaves the verb to the plugin.
func (c *Call) Decline() error { return c.write([]byte(declined)) }

// Answer sends the result.
func (c *Call) Answer(a Answer) error {
	packets := [][]byte{a.head()}
	for part := range slices.Chunk(append(a.Stdout, a.Stderr...), answerPacket) {
		packets = append(packets, part)
	}
	return c.write(packets...)
}

func (c *Call) write(packets ...[]byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(requestTime)); err != nil {
		return err
	}
	for _, packet := range packets {
		if _, err := c.conn.Write(packet); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the connection.
func (c *Call) Close() {
	if c.Netns >= 0 {
		_ = unix.Close(c.Netns)
	}
	_ = c.conn.Close()
}

// since lists the verbs that not all versions of the CNI specification have.
var since = map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

// accept returns the parameters of a verb, or the reason why the plugin must do it alone: the request is invalid, or
// this process would not do the same.
func (s *Server) accept(c *Call, verb string) (r cni.Request, err error) {
	env := c.Environment
	r = cni.Request{ContainerID: env["CNI_CONTAINERID"], IfName: env["CNI_IFNAME"], Netns: env["CNI_NETNS"],
		Args: env["CNI_ARGS"], Path: env["CNI_PATH"], Config: c.Config}
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

// samePlace reports whether the plugin is in the same mount namespace. It fails if the plugin has another network
// namespace or other directories.
func (s *Server) samePlace(c *Call) (bool, error) {
	theirs := cni.Plugin{
		StateDir: c.Environment["MUSTANG_CNI_STATE_DIR"], RunDir: c.Environment["MUSTANG_CNI_RUN_DIR"],
		BPFRoot: c.Environment["MUSTANG_BPF_ROOT"], Cgroup: c.Environment["MUSTANG_CNI_CGROUP"],
	}
	if !slices.Equal(directories(theirs), directories(s.Plugin)) || theirs.Cgroup != s.Plugin.Cgroup {
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
	// The directories must be the same below the root of the plugin's mount namespace.
	group := s.Plugin.Cgroup
	if group == "" {
		if group, err = cgroup.Root(); err != nil {
			return false, err
		}
	}
	for _, dir := range append(existing(s.Plugin), group) {
		here, err := os.Stat(dir)
		if err != nil {
			return false, err
		}
		if there, err := os.Stat(proc + "root" + dir); err != nil || !os.SameFile(here, there) {
			return false, errors.Join(err, fmt.Errorf("%s is another directory in the plugin's mount namespace", dir))
		}
	}
	return false, nil
}

func directories(p cni.Plugin) []string {
	return []string{
		cmp.Or(p.StateDir, cni.DefaultStateDir), cmp.Or(p.RunDir, cni.DefaultRunDir), cmp.Or(p.BPFRoot, objects.DefaultRoot),
	}
}

// existing is like directories, with the parent of the datapath, which may not exist yet.
func existing(p cni.Plugin) []string {
	dirs := directories(p)
	dirs[2] = filepath.Dir(dirs[2])
	return dirs
}

// acceptConfig returns an error for configurations that the plugin refuses, that run a program, or that need files
// which this process may not see.
func (s *Server) acceptConfig(verb string, config []byte, same bool) error {
	head := netconf.ParseHead(config)
	if head.Type == netconf.LoopbackType || !slices.Contains(cni.Versions(), head.CNIVersion) ||
		utils.ValidateNetworkName(head.Name) != nil {
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
