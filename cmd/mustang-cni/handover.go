// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
	"mustang/internal/cni/server"
	"mustang/internal/version"
)

// handOver gives the verb to the agent, if one runs, and prints its answer. done is false if the plugin does the verb; its
// configuration is at stdin then.
func (v *verbs) handOver() (end outcome, done bool) {
	verb := os.Getenv("CNI_COMMAND")
	if v.loopback || verb == "" || verb == "VERSION" || os.Getenv(netconf.AloneVariable) != "" {
		return end, false
	}
	r := request()
	answer, err := v.ask(&r, verb == "GC")
	switch {
	case errors.Is(err, server.ErrAlone):
		if r.Config != nil {
			if err := putBack(r.Config); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		return end, false
	case err != nil:
		failed := types.NewError(types.ErrTryAgainLater, err.Error(), "")
		return outcome{failed: cni.Failure{CNIVersion: netconf.ParseHead(r.Config).CNIVersion, Error: failed}}, true
	}
	_, _ = os.Stderr.Write(answer.Stderr)
	if _, err := os.Stdout.Write(answer.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return outcome{exit: 1}, true
	}
	return outcome{exit: int(answer.Exit)}, true
}

// ask has the agent do a verb. The request gets the configuration if that was read.
func (v *verbs) ask(r *server.Request, slow bool) (answer server.Answer, err error) {
	agent, err := server.Dial(socket())
	if err != nil {
		return answer, err
	}
	defer agent.Close()
	if r.Config, err = io.ReadAll(os.Stdin); err != nil {
		return answer, fmt.Errorf("%w: %w", server.ErrAlone, err)
	}
	ctx, parsed := v.signals.verb(slow)
	parsed()
	return agent.Ask(ctx, *r, r.Environment["CNI_NETNS"])
}

// socket returns the path at which an agent is looked for.
func socket() string { return cmp.Or(os.Getenv(server.SocketVariable), server.DefaultSocket) }

// request returns a request with the environment of this process.
func request() server.Request {
	r := server.Request{Version: version.Program(), Layout: cni.Layout(), Environment: map[string]string{}}
	for _, name := range server.Variables() {
		r.Environment[name] = os.Getenv(name)
	}
	return r
}

// await asks the agent of this node whether the policies of the pod hold, which CNI_ARGS name. It waits for an agent that is away: new
// ones begin while pods start.
func await(ctx context.Context, _, _, _ string) error {
	r := request()
	r.Environment["CNI_COMMAND"] = server.Await
	return server.AwaitPolicies(ctx, socket(), r)
}

// putBack makes the configuration that was read from stdin readable there again.
func putBack(config []byte) error {
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	os.Stdin = os.NewFile(uintptr(fd), "config")
	if _, err := os.Stdin.Write(config); err != nil {
		return err
	}
	_, err = os.Stdin.Seek(0, io.SeekStart)
	return err
}
