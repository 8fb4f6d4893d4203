// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"os"

	"mustang/internal/cni"
	"mustang/internal/cni/server"
	"mustang/internal/version"
)

func socket() string { return cmp.Or(os.Getenv(server.SocketVariable), server.DefaultSocket) }

func request() server.Request {
	r := server.Request{Version: version.Program(), Layout: cni.Layout(), Environment: map[string]string{}}
	for _, name := range server.Variables() {
		r.Environment[name] = os.Getenv(name)
	}
	return r
}

// await waits until the agent of this node has the policies of the pod that CNI_ARGS name in force. It also waits for
// an agent that does not answer yet: agents start while pods start.
func await(ctx context.Context, _, _, _ string) error {
	r := request()
	r.Environment["CNI_COMMAND"] = server.Await
	return server.AwaitPolicies(ctx, socket(), r)
}
