// SPDX-License-Identifier: Apache-2.0

// Package vm runs a command as root in a virtual machine with a stock Debian
// kernel, whatever kernel this machine has.
//
// The guest is QEMU, in software emulation unless the options say otherwise. Its
// root is this machine's root file system, read-only, below an overlay in the
// guest's memory: the command finds all programs and files where they are, and
// what it writes is gone when it ends. A bare guest has one program only and none
// of these files; it boots faster and in less memory. The guest has no network but
// its loopback device, and a device that leads to a TAP device of this machine if
// the options have one.
//
// The initramfs holds one static program, which starts there as process 1: the
// one that calls [Run], or another of ours. Its main must lead to [Init] when
// [IsInit] says so. Its arguments mean nothing then: they are what the kernel
// did not know on its command line.
package vm
