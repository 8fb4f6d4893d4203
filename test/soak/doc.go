// SPDX-License-Identifier: Apache-2.0

// Package soak tests the datapath with many real connections between pods on veths, while services change, programs
// are replaced, processes are killed and pods flood. A loaded machine makes every connection slow at times. So the
// tests judge losses, by errors, resets and retransmissions, and not only the time.
package soak
