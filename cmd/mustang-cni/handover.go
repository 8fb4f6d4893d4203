// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/cni/handover"
	"mustang/internal/cni/netconf"
)

// handOver gives the verb to the agent, if one runs, and prints its answer. done is false if the plugin does the verb; its
// configuration is at stdin then.
func (v *verbs) handOver() (exit int, done bool) {
	verb := os.Getenv("CNI_COMMAND")
	if v.loopback || verb == "" || verb == "VERSION" {
		return 0, false
	}
	r := request()
	answer, err := v.ask(&r, verb == "GC")
	switch {
	case errors.Is(err, handover.ErrHung):
		answer.Exit = 1
		failed := types.NewError(types.ErrTryAgainLater, err.Error(), "")
		answer.Stdout, err = json.Marshal(cni.Failure{CNIVersion: netconf.ParseHead(r.Config).CNIVersion, Error: failed})
	case errors.Is(err, handover.ErrLost):
		v.call = r.Call
	}
	if err != nil && r.Config != nil {
		if err := putBack(r.Config); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if err != nil {
		return 0, false
	}
	_, _ = os.Stderr.Write(answer.Stderr)
	if _, err := os.Stdout.Write(answer.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return int(answer.Exit), true
}

// ask has the agent do a verb, unless the client has asked it before. The request gets the call, and the configuration if that was read.
func (v *verbs) ask(r *handover.Request, slow bool) (answer handover.Answer, err error) {
	if r.Call, err = handover.ParseResult(os.Getenv(handover.ResultVariable)); err != nil {
		if errors.Is(err, handover.ErrHung) {
			r.Config, _ = io.ReadAll(os.Stdin)
		}
		return answer, err
	}
	agent, err := handover.Dial(socket())
	if err != nil {
		return answer, err
	}
	defer agent.Close()
	if r.Config, err = io.ReadAll(os.Stdin); err != nil {
		return answer, err
	}
	if r.Call, err = handover.NewCall(); err != nil {
		return answer, err
	}
	ctx, parsed := v.signals.verb(slow)
	parsed()
	return agent.Ask(ctx, *r, r.Environment["CNI_NETNS"])
}

// socket returns the path at which an agent is looked for.
func socket() string { return cmp.Or(os.Getenv(handover.SocketVariable), handover.DefaultSocket) }

// request returns a request with the environment of this process.
func request() handover.Request {
	r := handover.Request{Environment: map[string]string{}}
	for _, name := range handover.Variables() {
		r.Environment[name] = os.Getenv(name)
	}
	return r
}

// await asks the agent of this node whether the policies of the pod hold, which CNI_ARGS name. It waits for an agent that is away: new
// ones begin while pods start.
func await(ctx context.Context, _, _, _ string) error {
	r := request()
	r.Environment["CNI_COMMAND"], r.Environment[handover.LayoutVariable] = handover.Await, cni.Layout()
	return handover.AwaitPolicies(ctx, socket(), r)
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
