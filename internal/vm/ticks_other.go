// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package vm

// tickRate returns 0: the rate of the guest's counter is unknown here.
func tickRate() uint64 { return 0 }
