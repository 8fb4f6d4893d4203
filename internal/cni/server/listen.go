// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/version"
)

// Limits of a server.
const (
	maxWorkers = 4                      // verbs at once: they mostly wait for locks of the kernel and of the datapath
	maxCalls   = 512                    // requests at once; more are declined
	queueLimit = 20 * time.Second       // the longest wait for a worker; then the verb is declined
	drainTime  = 100 * time.Millisecond // for connections that plugins have already made when the server ends
	patience   = time.Second            // how long ADD waits here for the pod's policies; then the plugin waits
	longest    = 9 * time.Second        // the longest wait for an Await: the plugin gives up after 10 s
	farewell   = 8 * time.Second        // for running verbs at the server's end: SIGKILL follows SIGTERM after 10 s
)

// Options describe a server.
type Options struct {
	// Socket is its path; empty means DefaultSocket. The directory is created, and must be root's alone (0700).
	Socket string
	// Host is the network namespace of the node, Plugin does the verbs, and Version is the plugins' version; empty means
	// this program's. Plugins of other namespaces, directories or versions work alone. If DeleteDevice is nil, Listen sets
	// rtnl.DeleteInChild.
	Host    *netns.Namespace
	Plugin  cni.Plugin
	Version string
	// Observe is called after each verb; nil calls nothing. failed is set if the plugin prints an error.
	Observe func(verb string, took time.Duration, failed bool)
	Log     *slog.Logger // gets the errors of requests; nil discards them
}

// Server does verbs for plugins on this host.
type Server struct {
	Options
	listener             *net.UnixListener
	inode                uint64        // of the socket
	workers              chan struct{} // one for each verb that is done
	calls                chan struct{} // one for each request
	mounts               string        // this process's mount namespace
	network              string        // the host's network namespace
	farewell, queueLimit time.Duration
}

// InUse reports whether a socket is served, also by an agent that is busy or stopped with a full queue.
func InUse(socket string) (bool, error) {
	conn, err := net.Dial("unixpacket", socket)
	switch {
	case err == nil:
		return true, conn.Close()
	case errors.Is(err, unix.EAGAIN):
		return true, nil
	case errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, err
}

// Listen returns a server whose socket listens. It replaces the socket of another server, which gets no more.
func Listen(o Options) (_ *Server, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("CNI server: %w", err)
		}
	}()
	s := &Server{
		Options: o, workers: make(chan struct{}, maxWorkers), calls: make(chan struct{}, maxCalls),
		farewell: farewell, queueLimit: queueLimit,
	}
	s.Socket, s.Version = cmp.Or(o.Socket, DefaultSocket), cmp.Or(o.Version, version.Program())
	s.Plugin.Shared, s.Log = cmp.Or(o.Plugin.Shared, &datapath.Shared{}), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if s.Plugin.DeleteDevice == nil {
		s.Plugin.DeleteDevice = rtnl.DeleteInChild
	}
	if s.mounts, err = os.Readlink("/proc/self/ns/mnt"); err != nil {
		return nil, err
	}
	inode, err := o.Host.Inode()
	if err != nil {
		return nil, err
	}
	s.network = fmt.Sprintf("net:[%d]", inode)
	for _, dir := range existing(s.Plugin) { // else the plugin would create them, and could not see that they are the same
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if err := s.listen(); err != nil {
		return nil, fmt.Errorf("listen at %s: %w", s.Socket, err)
	}
	return s, nil
}

// listen creates the socket under another name and renames it, so that plugins find only a listening socket.
func (s *Server) listen() (err error) {
	dir := filepath.Dir(s.Socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || stat.Uid != 0 || stat.Mode&0o077 != 0 {
		return fmt.Errorf("%s has mode %#o and user %d, want a directory of root with mode 0700", dir, stat.Mode, stat.Uid)
	}
	temp := fmt.Sprintf("%s.%d", s.Socket, os.Getpid())
	_ = os.Remove(temp)
	s.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: temp, Net: "unixpacket"})
	if err != nil {
		return err
	}
	s.listener.SetUnlinkOnClose(false)
	if err = os.Chmod(temp, 0o600); err == nil {
		s.inode, err = inodeOf(temp)
	}
	if err == nil {
		err = os.Rename(temp, s.Socket)
	}
	if err != nil {
		_ = os.Remove(temp)
		_ = s.listener.Close()
	}
	return err
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

func inodeOf(path string) (uint64, error) {
	var stat unix.Stat_t
	err := unix.Lstat(path, &stat)
	return stat.Ino, err
}
