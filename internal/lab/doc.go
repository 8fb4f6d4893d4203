// SPDX-License-Identifier: Apache-2.0

// Package lab builds whole networks out of network namespaces on one machine:
// a host, pods plugged into it by a link mode, and a service in front of them; or
// two hosts on a wire, with pods on both, with a pod on one, or with Docker and its
// containers on one ([Topologies]). Pods can be virtual machines.
//
// It never touches the root network namespace: firewall rules and sysctls are
// those of the lab's own host, and eBPF maps and programs are pinned on a bpffs
// that belongs to the lab, so that deleting its namespaces and unmounting that
// undoes everything.
//
// A lab belongs to the process that made it, which holds a lock on the lab's
// state file. A lab whose owner died without cleaning up, by kill -9 say, is
// found by the free lock and cleared by [Store.Reap]. A lab that was kept with
// [Lab.Keep] stands until [Store.Down].
package lab
