// SPDX-License-Identifier: Apache-2.0

package service

import "fmt"

// Owner is a client of the datapath. An owner changes and deletes only its own services.
type Owner uint8

// The owners. NoOwner is the zero value; no stored service has it.
const (
	NoOwner Owner = iota
	CNI
	CLI
	Agent
	Lab
)

// String returns the lower-case name.
func (o Owner) String() string {
	if names := []string{"none", "cni", "cli", "agent", "lab"}; int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("owner-%d", uint8(o))
}
