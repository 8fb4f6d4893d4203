// SPDX-License-Identifier: Apache-2.0

package record

import (
	"crypto/sha256"
	"encoding/hex"

	"mustang/internal/ipam"
)

// Owner identifies an attachment within its network.
type Owner = ipam.Owner

// DevicePrefix returns the first 7 characters of the names of the host devices of a network.
func DevicePrefix(network string) string { return "mst" + Digest(network, 4) }

// DeviceName returns the name of the host device of an attachment, 15 characters long
// (IFNAMSIZ-1). It depends only on its arguments, so DEL finds the device without a record.
func DeviceName(network string, o Owner) string {
	return DevicePrefix(network) + Digest(network+"\x00"+o.ContainerID+"\x00"+o.IfName, 8)
}

// Digest returns the first hexadecimal digits of the SHA-256 digest of text.
func Digest(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}
