// SPDX-License-Identifier: Apache-2.0

// Package server does the verbs of the CNI plugin in a long-running agent.
//
// On a node with an agent, a client in C (cni/client.c) lies in the place of the plugin. It sends one packet over a
// unix socket, with a descriptor of the pod's network namespace. The agent answers with the result, or declines: then
// the client runs the plugin, as it does without an agent. If the agent gives no answer within a minute, the client
// fails and the runtime tries again: no verb runs twice at once. The plugin itself contacts the agent only for policies
// ([AwaitPolicies]).
package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
	"mustang/internal/datapath"
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

// Listen returns a server whose socket takes connections. It replaces the socket of another server, which gets no more
// connections.
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

// Run serves plugins until ctx ends. Then it declines waiting requests, and finishes running verbs, unless they take
// too long.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	defer s.finish(&all)
	defer s.listener.Close() // before Run returns: so that the next server finds the socket dead
	defer s.drain()
	stop := context.AfterFunc(ctx, s.drain)
	defer stop()
	for {
		conn, err := s.listener.AcceptUnix()
		switch {
		case err == nil:
			all.Go(func() { s.serve(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) ||
			errors.Is(err, unix.ENOBUFS):
			s.Log.Warn("CNI socket", "error", err)
			time.Sleep(100 * time.Millisecond)
		default:
			return fmt.Errorf("CNI server: %w", err)
		}
	}
}

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

// drain removes the socket, unless it is another server's, and makes Run end once it has accepted the existing
// connections.
func (s *Server) drain() {
	if inode, err := inodeOf(s.Socket); err == nil && inode == s.inode {
		_ = os.Remove(s.Socket)
	}
	_ = s.listener.SetDeadline(time.Now().Add(drainTime))
}

func (s *Server) worker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.queueLimit)
	defer cancel()
	select {
	case s.workers <- struct{}{}:
		if ctx.Err() == nil {
			return nil
		}
		<-s.workers
	case <-ctx.Done():
	}
	return fmt.Errorf("wait for a worker: %w", ctx.Err())
}

func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	call, err := Receive(conn)
	if err != nil {
		s.Log.Warn("CNI socket", "error", err)
		return
	}
	defer call.Close()
	verb, container := call.Environment["CNI_COMMAND"], call.Environment["CNI_CONTAINERID"]
	answer, err := s.answer(ctx, call, verb)
	if err != nil {
		s.Log.Debug("the CNI plugin works alone", "verb", verb, "container", container, "reason", err)
		_ = call.Decline()
		return
	}
	if err := call.Answer(answer); err != nil {
		s.Log.Warn("CNI request", "verb", verb, "container", container, "error", err)
	}
}

func (s *Server) answer(ctx context.Context, c *Call, verb string) (answer Answer, err error) {
	select {
	case s.calls <- struct{}{}:
		defer func() { <-s.calls }()
	default:
		return answer, errors.New("too many requests")
	}
	ending := ctx
	ctx, cancel := c.Context(ctx)
	defer cancel()
	if verb == Await {
		return s.await(ctx, ending, c)
	}
	r, err := s.accept(c, verb)
	if err != nil {
		return answer, err
	}
	if r.Pod != nil {
		c.Netns = -1
		defer r.Pod.Close()
	}
	if err := s.awaitBriefly(ctx, verb, r); err != nil {
		return answer, err
	}
	begun := time.Now()
	if err := s.worker(ctx); err != nil {
		return answer, err
	}
	defer func() { <-s.workers }()
	answer = s.do(ctx, verb, r)
	if s.Observe != nil {
		s.Observe(verb, time.Since(begun), answer.Exit != 0)
	}
	return answer, nil
}

func (s *Server) do(ctx context.Context, verb string, r cni.Request) (answer Answer) {
	var stdout, stderr bytes.Buffer
	p := s.Plugin
	p.Stderr = &stderr
	if p.Await != nil { // serve has waited, without a worker
		p.Await = func(context.Context, string, string, string) error { return nil }
	}
	version := netconf.ParseHead(r.Config).CNIVersion
	failure := s.run(func() error {
		work := context.WithoutCancel(ctx) // short verbs finish
		switch verb {
		case "ADD":
			result, err := p.Add(work, r)
			if err != nil {
				return err
			}
			return cni.WriteResult(&stdout, result, version)
		case "DEL":
			return p.Del(work, r)
		case "CHECK":
			return p.Check(work, r)
		case "STATUS":
			return p.Status(work, r)
		}
		return p.GC(ctx, r)
	})
	if failure != nil {
		stdout.Reset()
		answer.Exit = 1
		_ = json.NewEncoder(&stdout).Encode(cni.Failure{CNIVersion: version, Error: cni.Coded(failure)}) // texts
	}
	answer.Stdout, answer.Stderr = stdout.Bytes(), stderr.Bytes()
	return answer
}

func (s *Server) run(verb func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("the agent has a fault: %v", reason)
			s.Log.Error("CNI request", "error", err, "stack", string(debug.Stack()))
		}
	}()
	return s.Host.Do(verb)
}

func (s *Server) awaitBriefly(ctx context.Context, verb string, r cni.Request) error {
	if verb != "ADD" || s.Plugin.Await == nil || netconf.ParseHead(r.Config).Policies != netconf.PoliciesAgent {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	namespace, name, uid := netconf.KubernetesPod(r.Args)
	return s.Plugin.Await(ctx, namespace, name, uid)
}

// await answers once the policies of a Pod are in force. The plugin may be any version with the same map layout.
func (s *Server) await(ctx, ending context.Context, c *Call) (answer Answer, err error) {
	if _, err := s.samePlace(c); err != nil {
		s.Log.Warn("CNI socket: policies are of another datapath than the plugin's", "reason", err)
		return answer, err
	}
	if s.Plugin.Await == nil || c.Layout != cni.Layout() {
		return answer, fmt.Errorf("policies of layout %q", c.Layout)
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	namespace, name, uid := netconf.KubernetesPod(c.Environment["CNI_ARGS"])
	if err := s.Plugin.Await(ctx, namespace, name, uid); err != nil {
		if ending.Err() != nil {
			return answer, err // the plugin asks the next agent
		}
		answer = Answer{Exit: 1, Stderr: fmt.Append(nil, err)}
	}
	return answer, nil
}
