// SPDX-License-Identifier: Apache-2.0

// Package load is the native load engine: it moves data between two processes and
// measures the rate, the latency and the CPU time.
//
// Client and server are separate processes, so that each can run in a network
// namespace, on a CPU or on a machine of its own. [StartAgent] starts one: a program,
// usually the caller's own, whose main calls [Main]. [AgentOptions.Shell] starts it on
// another machine. Parent and agent exchange JSON lines over the agent's standard input
// and output. An agent ends when its input ends, so it never outlives its parent.
//
// How a run is measured:
//
//   - A run has a warm-up, which is not counted, and a window, which is. The receiver
//     measures a stream. The client measures request/response, and a stream whose
//     datagrams are answered. The window is bounded by the monotonic clock of the
//     measuring side.
//   - A stream may have several flows ([Spec.Flows]), each on a thread of its own on the
//     agent's CPU. They start together and are counted in one window.
//   - UDP needs no control connection: client and server agree in datagrams with the
//     addresses and ports of the stream, so that all of a run through a translated
//     address is translated. The server has a socket for each client. Socket buffers
//     are set and checked, and drops for lack of buffer are counted.
//   - Sockets block and are driven by raw system calls on a locked thread that is pinned
//     to the agent's CPU. The garbage collector is off while a connection is open, and
//     the Go scheduler's signals are off in the process, so neither disturbs the
//     figures. The hot loops do not allocate.
//   - CPU time is the whole machine's busy time, see package clock.
//   - Where a clock counts instructions ([Spec.Exact]), the client's busy time is exact,
//     and agents of fixed priorities ([AgentOptions.Priority]) make each run the same
//     sequence of events.
//
// Sockets have timeouts, so that a run whose peer dies or vanishes ends with an error
// (ETIMEDOUT, ECONNRESET) and never hangs.
package load
