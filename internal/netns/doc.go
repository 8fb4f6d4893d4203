// SPDX-License-Identifier: Apache-2.0

// Package netns opens, creates, names and enters network namespaces, and starts processes in them.
//
// No function leaves the calling goroutine in another namespace than before. Package rtnl reads and changes the devices
// of a namespace.
package netns
