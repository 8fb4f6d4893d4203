// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

package rtnl

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendInChild is not implemented for this processor.
func sendInChild(int, unsafe.Pointer, int) int { return -int(unix.ENOSYS) }
