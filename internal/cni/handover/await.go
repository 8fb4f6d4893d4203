// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Await is the CNI_COMMAND of a request that is no verb: the agent answers once the policies hold that the cluster has for the Pod of
// CNI_ARGS, in the datapath of the directories and of the layout that the request names. Its version does not count.
const Await = "AWAIT"

// again is how long AwaitPolicies waits before it looks for an agent again: one that starts anew takes its time.
const again = 100 * time.Millisecond

// AwaitPolicies sends a request of Await to the agent at a socket, and to the next one if that ends, until one answers that the policies
// hold, or ctx ends. The error tells why they do not yet, or that there is no agent.
func AwaitPolicies(ctx context.Context, socket string, r Request) error {
	for {
		err := awaitOnce(ctx, socket, r)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(again):
		}
	}
}

func awaitOnce(ctx context.Context, socket string, r Request) error {
	agent, err := Dial(socket)
	if err != nil {
		return fmt.Errorf("%s: %w", socket, err)
	}
	defer agent.Close()
	answer, err := agent.Ask(ctx, r, "")
	switch {
	case errors.Is(err, ErrAlone):
		return fmt.Errorf("%s: the agent has another layout or other directories, or starts or ends: %w", socket, err)
	case err == nil && answer.Exit != 0:
		err = errors.New(string(answer.Stderr))
	}
	return err
}
