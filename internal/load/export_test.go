// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"os"
)

// ProcessState returns how the agent's process has ended.
func (a *Agent) ProcessState() *os.ProcessState { return a.cmd.ProcessState }

// Ping returns when the agent answers. It returns an error if the agent has ended, or is given up.
func (a *Agent) Ping(ctx context.Context) error {
	_, err := a.call(ctx, Call{Op: OpPing}, a.timeout)
	return err
}
