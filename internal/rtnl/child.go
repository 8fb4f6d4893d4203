// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package rtnl

import "unsafe"

// sendInChild starts a process that shares the memory of the caller and has a copy of its file descriptors. The process
// closes all of them but fd, sends length bytes at message to that socket, and exits. It uses no stack, so it can share
// the caller's. The result is the process ID, or a negative error number.
//
//go:noescape
func sendInChild(fd int, message unsafe.Pointer, length int) int
