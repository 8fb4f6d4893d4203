// SPDX-License-Identifier: Apache-2.0

// Package clock reads the clocks at both ends of a measured window: the busy time of the machine's CPUs and, on an
// emulated machine, the number of executed instructions.
//
// CPU time is the whole machine's busy time ([MachineTime]): softirqs, which spend most of a packet's cost, are
// charged to no process or to any. It is meaningful only if the machine is otherwise idle.
package clock
