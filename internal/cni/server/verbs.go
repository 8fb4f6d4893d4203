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
	"mustang/internal/cni/handover"
	"mustang/internal/cni/netconf"
)

// do does a verb in the host's network namespace. The error is a panic: what was begun is recorded, and its locks are free.
func (s *Server) do(ctx context.Context, c *handover.Call, verb string, r cni.Request) (answer handover.Answer, err error) {
	var result *types100.Result
	var stderr bytes.Buffer
	p := s.Plugin
	p.Stderr = &stderr
	if p.Await != nil { // serve has waited, without a worker
		p.Await = func(context.Context, string, string, string) error { return nil }
	}
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
		}
	}()
	failure := s.Host.Do(func() (err error) {
		work := context.WithoutCancel(ctx) // short verbs finish
		switch verb {
		case "ADD":
			result, err = p.Add(work, r)
		case "DEL":
			err = p.Del(work, r)
		case "CHECK":
			err = p.Check(work, r)
		case "STATUS":
			err = p.Status(work, r)
		case "GC":
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			go func() {
				<-c.Gone()
				cancel()
			}()
			err = p.GC(ctx, r)
		}
		return err
	})
	var stdout bytes.Buffer
	version := netconf.ParseHead(r.Config).CNIVersion
	if failure == nil && result != nil {
		failure = cni.WriteResult(&stdout, result, version)
	}
	if failure != nil {
		stdout.Reset()
		answer.Exit = 1
		err = json.NewEncoder(&stdout).Encode(cni.Failure{CNIVersion: version, Error: cni.Coded(failure)})
	}
	answer.Stdout, answer.Stderr = stdout.Bytes(), stderr.Bytes()
	return answer, err
}
