// SPDX-License-Identifier: Apache-2.0

// Package datapath loads Mustang's BPF programs, attaches them to pods, and gives the pinned maps behind them a type.
// The maps are the only state: each method is a client of them, so that any number of processes see one truth, and the
// programs go on working when none of those processes runs.
//
// Everything is pinned under one root directory, which is also the lock of all changes:
//
//	ROOT/v3/maps/services           the maps, by name
//	ROOT/v3/progs/3f0c...-host-...  the programs, by a digest of the object that they are from
//	ROOT/v3/links/3-host-from_pod   their attachments, by the id of the endpoint
//	ROOT/v3/socks/91ab...-connect4  the programs for sockets, likewise, once a cgroup has had them
//	ROOT/v3/links/cgroup-42-connect4 their attachments, by the id of the cgroup
package datapath
