// SPDX-License-Identifier: Apache-2.0

// Package server does the verbs of the CNI plugin in a process that stays: the plugin hands them over a unix socket (package
// handover). A verb gives the same result and leaves the same state as if the plugin did it. What this process cannot do as
// the plugin would, it leaves to the plugin.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/cni/handover"
	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/rtnl/unlink"
)

// Limits of a server.
const (
	// maxWorkers is the number of verbs that it does at once. Most of one is waiting for the kernel's lock of all devices, or for that of the datapath, which
	// the agent's rounds wait for too: more at once are no faster, and each waits longer.
	maxWorkers = 4
	// maxCalls is the number of requests that it has at once. It closes the connections of more, whose plugins work alone.
	maxCalls = 512
	// maxQueued is the number of those that it has begun, and that wait for a worker.
	maxQueued = 256
	// queueDelay is how long a verb waits for a worker before it is begun all the same. A plugin waits for the begin four times as long.
	queueDelay = 500 * time.Millisecond
	// queueLimit is how long a verb that is begun waits for a worker. Then its plugin does it: of a plugin, the answer is waited for for a minute.
	queueLimit = 20 * time.Second
	// patience is how long an ADD waits here for its policies. Then its plugin works alone, and waits longer.
	patience = time.Second
	// longest is how long a plugin that works alone may wait for them, whatever it wants itself.
	longest = 30 * time.Second
	// farewell is how long verbs may take that have begun when the server ends. They can wait for the lock of a process that is stopped, and an agent is
	// killed 10 s after it was told to end. What they have done by then is recorded.
	farewell = 8 * time.Second
)

// Options describe a server.
type Options struct {
	// Socket is its path; empty means handover.DefaultSocket. The directory is created, and must be root's alone (0700).
	Socket string
	// Host is the network namespace of the node. Plugins in others work alone.
	Host *netns.Namespace
	// Plugin does the verbs. Plugins with other directories work alone. DeleteDevice is that of the plugin if it is nil.
	Plugin cni.Plugin
	// Program is the file of the plugin that belongs to this process. Plugins with other contents work alone; empty: all do.
	Program string
	// Observe is called after each verb; nil calls nothing. failed is that the plugin prints an error.
	Observe func(verb string, took time.Duration, failed bool)
	// Log gets the errors of requests; nil discards them.
	Log *slog.Logger
}

// Server does verbs for plugins on this host.
type Server struct {
	Options
	listener             *net.UnixListener
	inode                uint64        // of the socket
	workers              chan struct{} // one for each verb that is done
	calls                chan struct{} // one for each request
	queued               chan struct{} // one for each verb that is begun, and waits for a worker
	began                time.Time
	ended                atomic.Int64 // when a verb has ended last, in nanoseconds since began, whatever the clock is set to
	programs             *programs
	mounts               string // this process's mount namespace
	network              string // the host's network namespace
	farewell, queueLimit time.Duration
}

// InUse reports whether somebody serves at a socket. An agent that is busy or stopped, and whose queue is full, does.
func InUse(socket string) (bool, error) {
	conn, err := net.Dial("unixpacket", socket)
	switch {
	case err == nil:
		_ = conn.Close()
		return true, nil
	case errors.Is(err, unix.EAGAIN):
		return true, nil
	case errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, err
}

// Listen returns a server whose socket takes connections. It replaces the socket of another, which gets no more of them.
func Listen(o Options) (_ *Server, err error) {
	s := &Server{Options: o, workers: make(chan struct{}, maxWorkers), calls: make(chan struct{}, maxCalls), queued: make(chan struct{}, maxQueued), farewell: farewell, queueLimit: queueLimit, began: time.Now()}
	s.Socket = cmp.Or(o.Socket, handover.DefaultSocket)
	if s.Plugin.DeleteDevice == nil {
		s.Plugin.DeleteDevice = unlink.Device
	}
	if s.Plugin.Shared == nil {
		s.Plugin.Shared = &datapath.Shared{}
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.mounts, err = os.Readlink("/proc/self/ns/mnt"); err != nil {
		return nil, fmt.Errorf("CNI server: %w", err)
	}
	if s.programs, err = newPrograms(o.Program); err != nil {
		return nil, fmt.Errorf("CNI server: the plugin of this program: %w", err)
	}
	inode, err := o.Host.Inode()
	if err != nil {
		return nil, fmt.Errorf("CNI server: %w", err)
	}
	s.network = fmt.Sprintf("net:[%d]", inode)
	for _, dir := range s.directories() { // the plugin creates them otherwise, and cannot see then that they are the same
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("CNI server: %w", err)
		}
	}
	if err := s.listen(); err != nil {
		return nil, fmt.Errorf("CNI server: listen at %s: %w", s.Socket, err)
	}
	return s, nil
}

// listen makes the socket beside its place and moves it there, so that no plugin finds one that does not listen.
func (s *Server) listen() (err error) {
	dir := filepath.Dir(s.Socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if stat := info.Sys().(*unixStat); !info.IsDir() || stat.Uid != 0 || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s has mode %v and user %d, want a directory of root with mode 0700", dir, info.Mode(), stat.Uid)
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

// Run serves plugins until ctx ends. Then it takes no more requests, finishes the verbs that it has begun, unless they take too long, and removes its
// socket.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	defer s.finish(&all)
	defer s.close() // before Run returns: whoever comes next sees that nobody serves
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	for {
		conn, err := s.listener.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS):
			s.Log.Warn("CNI socket", "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		case err != nil:
			s.close()
			return fmt.Errorf("CNI server: %w", err)
		}
		select {
		case s.calls <- struct{}{}:
			all.Go(func() {
				defer func() { <-s.calls }()
				s.serve(ctx, conn)
			})
		default:
			_ = conn.Close()
		}
	}
}

// finish waits for the requests that have begun.
func (s *Server) finish(all *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(s.farewell):
		s.Log.Warn("CNI server: ends before its verbs", "verbs", len(s.workers), "after", s.farewell)
	}
}

// close ends the socket, and removes it unless it is another server's already.
func (s *Server) close() {
	if inode, err := inodeOf(s.Socket); err == nil && inode == s.inode {
		_ = os.Remove(s.Socket)
	}
	_ = s.listener.Close()
}

// begin waits for a worker, and takes the claim of a request: false if somebody else has it, the plugin does not wait any more, or the server ends. While
// others make progress, it takes the claim before there is a worker: a node that starts hundreds of pods does not start as many plugins, which would wait
// for the same locks. Who waits with a claim keeps its place.
func (s *Server) begin(ctx context.Context, call *handover.Call) bool {
	claimed := false
	defer func() {
		if claimed {
			<-s.queued
		}
	}()
	var limit <-chan time.Time
	early := time.NewTicker(queueDelay)
	defer early.Stop()
	for {
		select {
		case s.workers <- struct{}{}:
			start := call.Begin
			if claimed {
				start = call.Waits // a plugin that has ended meanwhile: its pod may be deleted already
			}
			if ctx.Err() == nil && start() == nil {
				return true
			}
			<-s.workers
			return false
		case <-early.C:
			if time.Since(s.began)-time.Duration(s.ended.Load()) > queueDelay {
				continue
			}
			select {
			case s.queued <- struct{}{}:
				claimed = true
				if call.Begin() != nil {
					return false
				}
				early.Stop()
				limit = time.After(s.queueLimit)
			default:
			}
		case <-limit: // the plugin sees the connection end, and does the verb
			return false
		case <-ctx.Done(): // the same
			return false
		}
	}
}

// end frees the worker of a verb.
func (s *Server) end() {
	s.progress()
	<-s.workers
}

// progress notes that a verb has ended.
func (s *Server) progress() { s.ended.Store(int64(time.Since(s.began))) }

// serve serves a connection.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	call, err := handover.Receive(conn)
	stop()
	if err != nil {
		s.Log.Warn("CNI socket", "error", err)
		return
	}
	defer call.Close()
	if call.Environment["CNI_COMMAND"] == handover.Await {
		s.await(ctx, call)
		return
	}
	verb, request, err := s.accept(call)
	if err == nil && request.Pod != nil {
		call.Netns = -1
		defer request.Pod.Close()
	}
	if err == nil {
		err = s.awaitBriefly(ctx, verb, request)
	}
	if err != nil {
		s.Log.Debug("the CNI plugin works alone", "verb", verb, "container", request.ContainerID, "reason", err)
		return
	}
	begun := time.Now()
	if !s.begin(ctx, call) {
		return
	}
	defer s.end()
	answer, err := s.do(ctx, call, verb, request)
	if err == nil {
		if s.Observe != nil {
			s.Observe(verb, time.Since(begun), answer.Exit != 0)
		}
		err = call.Answer(answer)
	}
	if err != nil {
		s.Log.Warn("CNI request", "verb", verb, "container", request.ContainerID, "error", err)
	}
}
