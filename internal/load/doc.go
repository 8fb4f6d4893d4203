// SPDX-License-Identifier: Apache-2.0

// Package load is the native load engine: it moves data between two processes and measures the rate, the latency and
// the CPU time.
//
// Client and server are separate processes, so that each can run in a network namespace, on a CPU or on a machine of
// its own. StartAgent starts one: a program, usually the caller's own, whose main calls worker.Main. AgentOptions.Shell
// starts it on another machine. Parent and agent exchange JSON lines over the agent's standard input and output. An
// agent ends when its input ends, so it never outlives its parent. A run (Agent.Run) has a warm-up, which is not
// counted, and a window, which is. Package worker says how load is carried and measured.
//
// Paths that are compared should lie milliseconds apart. Agent.Open opens a connection that stands at rest, and
// Agent.Slices gives connections turns of some milliseconds, back to back on one thread. When a slice ends, nothing of
// it is in flight. Sockets may be in other network namespaces than their process (Spec.Namespace, Agent.ListenIn), so
// that the rows that are compared share two processes. The namespaces need these settings below net.ipv4:
//
//   - tcp_slow_start_after_idle = 0, or each slice starts with a small window;
//   - for TCPCRR, at the client: tcp_tw_reuse = 1 and a wide ip_local_port_range, such as "1024 65000" without the
//     servers' ports. TIME_WAIT else holds all ports after some ten thousand connections to one port, and a slice ends
//     with EADDRNOTAVAIL. Where connections are tracked, so does the table of the connections:
//     net.netfilter.nf_conntrack_tcp_timeout_time_wait = 1.
package load
