// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

package nl

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendByChild is written for some processors only.
func sendByChild(int, unsafe.Pointer, int) int { return -int(unix.ENOSYS) }
