// SPDX-License-Identifier: Apache-2.0

// Package worker is the process of a load agent: it carries load over sockets as its
// parent, package load, commands.
//
// How load is measured:
//
//   - The client's monotonic clock bounds a slice. Of a UDP stream the longer window of
//     both ends counts.
//   - Each flow of a stream has a thread of its own on the agent's CPU. Flows start together, in one window.
//   - UDP needs no control connection: client and server agree in datagrams of the stream's addresses and
//     ports, so that all of a connection through a translated address is translated.
//   - Sockets block and are driven by raw system calls on a locked thread that is pinned to the agent's CPU.
//     The hot loops do not allocate. The garbage collector is off while a connection is open, the scheduler's
//     signals are off, and the threads of the Go runtime wake late, at ticks that come anyway.
//   - CPU time is the whole machine's busy time, see package clock. Where a clock counts instructions
//     (load.Spec.Exact), agents of fixed priorities make each slice the same sequence of events.
//
// How a slice ends, with nothing of it in flight:
//
//   - A request/response waits for its last response.
//   - A TCP stream starts and ends with an empty connection: the server answers the last block of the lead, and of
//     the slice, so that all work for the counted bytes is in the time, if both ends share a CPU too.
//   - A UDP stream ends with the server's counts.
//   - The connections of a tcp_crr go to the same port as all others. The thread
//     that accepts identifies them by their first byte and serves them.
//
// Between slices neither end sends, and no timer wakes their threads; only a TCP connection that was idle for
// a minute is probed. Sockets have timeouts, so that a slice whose peer dies or vanishes ends with an error
// (ETIMEDOUT, ECONNRESET).
package worker
