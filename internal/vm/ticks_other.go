// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package vm

// tickRate returns 0: what QEMU gives the guest here is not known.
func tickRate() uint64 { return 0 }
