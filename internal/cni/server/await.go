// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
)

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
