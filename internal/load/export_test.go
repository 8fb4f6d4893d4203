// SPDX-License-Identifier: Apache-2.0

package load

import "os"

// ProcessState returns how the agent's process has ended.
func (a *Agent) ProcessState() *os.ProcessState { return a.cmd.ProcessState }
