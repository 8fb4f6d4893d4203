// SPDX-License-Identifier: Apache-2.0

// Package load is the native load engine: it moves data between two processes and measures the rate, the latency and
// the CPU time.
//
// Client and server are separate processes, so that each can run in a network namespace, on a CPU or on a machine of
// its own. StartAgent starts one: a program, usually the caller's own, whose main calls worker.Main. AgentOptions.Shell
// starts it on another machine. Parent and agent exchange JSON lines over the agent's standard input and output. An
// agent ends when its input ends, so it never outlives its parent.
//
// Agent.Open opens a connection, and Agent.Slices gives connections turns, back to back on one thread. A slice has a
// lead, which is not counted, and a time or a number of transactions, which is. When it ends, nothing of it is in
// flight. Agent.Run is one slice of a connection of its own. Package worker describes how load is carried and measured.
package load
