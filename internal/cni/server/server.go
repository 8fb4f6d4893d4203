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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
	"mustang/internal/netns"
	"mustang/internal/podlink"
)

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

// drain removes the socket, unless it is another server's, and makes Run end once it has accepted present connections.
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
