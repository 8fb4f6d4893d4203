// SPDX-License-Identifier: Apache-2.0

// Package nl enters network namespaces and reads and changes what is in them:
// devices, sysctls, the kernel's connection table.
//
// Every operation names the namespace that it works on, and none of them
// leaves the calling goroutine in another namespace than it was in.
package nl
