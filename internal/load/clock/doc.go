// SPDX-License-Identifier: Apache-2.0

// Package clock reads the clocks at both ends of a measured window: the time that
// the machine's CPUs were busy and, on an emulated machine, the number of executed
// instructions.
//
// CPU time is the whole machine's busy time ([MachineTime]), because softirqs, in
// which most of a packet's cost is spent, are charged to no process or to any. The
// machine has to be otherwise idle for it to mean anything.
package clock
