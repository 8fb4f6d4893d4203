// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"mustang/internal/ipam"
)

// Owner identifies an attachment within its network.
type Owner = ipam.Owner

// describe names an attachment for messages.
func describe(o Owner) string {
	return fmt.Sprintf("container %s, interface %s", o.ContainerID, o.IfName)
}

// devicePrefix begins the names of the host's devices of a network's pods.
func devicePrefix(network string) string { return "mst" + short(network, 4) }

// deviceName is the name of the host's device of an attachment: 15 characters, as
// many as the kernel takes. It follows from the names alone, so that it is known
// where all records are lost.
func deviceName(network string, o Owner) string {
	return devicePrefix(network) + short(network+"\x00"+o.ContainerID+"\x00"+o.IfName, 8)
}

// short is the beginning of a text's digest.
func short(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}
