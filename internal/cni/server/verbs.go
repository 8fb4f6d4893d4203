// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
)

// do does a verb in the host's network namespace.
func (s *Server) do(ctx context.Context, verb string, r cni.Request) (answer Answer) {
	var stderr bytes.Buffer
	p := s.Plugin
	p.Stderr = &stderr
	if p.Await != nil { // serve has waited, without a worker
		p.Await = func(context.Context, string, string, string) error { return nil }
	}
	result, failure := s.run(func() (*types100.Result, error) {
		work := context.WithoutCancel(ctx) // short verbs finish
		switch verb {
		case "ADD":
			return p.Add(work, r)
		case "DEL":
			return nil, p.Del(work, r)
		case "CHECK":
			return nil, p.Check(work, r)
		case "STATUS":
			return nil, p.Status(work, r)
		}
		return nil, p.GC(ctx, r)
	})
	var stdout bytes.Buffer
	version := netconf.ParseHead(r.Config).CNIVersion
	if failure == nil && result != nil {
		failure = cni.WriteResult(&stdout, result, version)
	}
	if failure != nil {
		stdout.Reset()
		answer.Exit = 1
		_ = json.NewEncoder(&stdout).Encode(cni.Failure{CNIVersion: version, Error: cni.Coded(failure)}) // texts
	}
	answer.Stdout, answer.Stderr = stdout.Bytes(), stderr.Bytes()
	return answer
}

// run runs a verb on the host. A panic is an error too: what was begun is recorded, and its locks are free.
func (s *Server) run(verb func() (*types100.Result, error)) (result *types100.Result, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("the agent has a fault: %v", reason)
			s.Log.Error("CNI request", "error", err, "stack", string(debug.Stack()))
		}
	}()
	err = s.Host.Do(func() (err error) {
		result, err = verb()
		return err
	})
	return result, err
}

// awaitBriefly waits for the policies of an ADD, before it takes a worker. The error leaves it to the plugin, which waits longer.
func (s *Server) awaitBriefly(ctx context.Context, verb string, r cni.Request) error {
	if verb != "ADD" || s.Plugin.Await == nil || netconf.ParseHead(r.Config).Policies != netconf.PoliciesAgent {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	namespace, name, uid := netconf.KubernetesPod(r.Args)
	return s.Plugin.Await(ctx, namespace, name, uid)
}

// await answers once the policies of a Pod hold. The plugin may be any version that knows the layout of this one's maps.
// ending ends with the server.
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
