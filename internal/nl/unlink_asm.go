// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package nl

import "unsafe"

// sendByChild starts a process that shares our memory, but has a copy of our file
// descriptors. It closes them all but fd, sends length bytes at message to that
// socket, and ends. It uses no stack, so it can share ours. It returns the
// process's id, or an error number below zero.
//
//go:noescape
func sendByChild(fd int, message unsafe.Pointer, length int) int
