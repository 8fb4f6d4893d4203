// SPDX-License-Identifier: Apache-2.0

// Package traffic is the native load engine: it moves data between two
// processes and counts.
//
// Client and server are processes of their own, so that each can live in a
// namespace and on a CPU of its own. [StartAgent] starts one, by running a
// program (usually the caller's own) whose main calls [Main]. The two talk JSON
// lines over the agent's standard input and output; an agent ends when its
// input does, so it never outlives its parent, however that dies.
//
// What is measured, and how:
//
//   - A run has a warm-up that is not counted and a window that is. The
//     measuring side is the receiver of a stream, and the client of a
//     request/response and of a stream whose datagrams are answered; its
//     monotonic clock bounds the window.
//   - A stream may run over several flows ([Spec.Flows]), each on a thread of its own
//     on the agent's CPU. They begin at the same moment and are counted in one
//     window; the machine's time is taken once.
//   - UDP needs no connection beside its own: client and server agree by
//     datagrams of the stream's own addresses and ports, so that a run through
//     a translated address is all translated. The server has a socket for each
//     client. Buffers are set, and checked; what does not fit is counted.
//   - Sockets block and are driven by raw system calls on a locked thread that
//     is pinned to the agent's CPU. The garbage collector is off while a
//     connection is open and the Go scheduler's signals are off in the process,
//     so neither stands in the figures. The hot loops allocate nothing.
//   - CPU time is the whole machine's busy time ([MachineTime]), because most of
//     what a packet costs is spent in softirqs that no process is charged for.
//     The machine has to be otherwise idle for it to mean anything.
//   - Where a clock counts instructions ([Spec.Exact]), the client's busy time is
//     exact, and agents of fixed priorities ([AgentOptions.Priority]) make each
//     run the same sequence of events.
//
// Where client and server are on two machines, [Serve] runs on the other one and
// starts an agent for each peer that [DialPeer] brings, one at a time.
//
// Sockets have timeouts, so that a peer that dies or vanishes ends a run with
// an error (ETIMEDOUT, ECONNRESET) and never hangs it.
package traffic
