// SPDX-License-Identifier: Apache-2.0

// Package cni is the CNI plugin: the verbs of the Container Network Interface
// (CNI spec 1.1.0) as plain functions over link modes, addresses and the eBPF
// datapath.
//
// What an attachment consists of is noted in a record before it is made, step by
// step. So there is one way to take an attachment down, and it serves DEL, GC, an
// ADD that fails, and what a killed ADD has left.
package cni
