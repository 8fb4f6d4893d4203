// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"strings"
)

// Owner is whom an address belongs to: an interface of a container.
type Owner struct {
	ContainerID string `json:"container"` // letters, digits, "_", "." and "-", the first a letter or digit
	IfName      string `json:"interface"` // as Linux has it: up to 15 bytes, no "/", ":" or space
}

// String is like "eth0 of 3f2a9c".
func (o Owner) String() string { return o.IfName + " of " + o.ContainerID }

// at stands between the two parts of an owner's file name. No container's ID and no address has it.
const at = "@"

// maxName is how long a file's name can be, in bytes (NAME_MAX).
const maxName = 255

func (o Owner) file() string { return o.ContainerID + at + o.IfName }

// ownerOf is whose file this is.
func ownerOf(file string) (Owner, bool) {
	id, ifName, found := strings.Cut(file, at)
	o := Owner{id, ifName}
	return o, found && o.validate() == nil
}

// validate refuses what the CNI specification has no container or interface be called, so that no name of an owner leads
// out of the store's directory.
func (o Owner) validate() error {
	switch {
	case o.ContainerID == "":
		return errors.New("the container's ID is empty")
	case strings.Trim(o.ContainerID, alphanumeric+"_.-") != "" || !strings.Contains(alphanumeric, o.ContainerID[:1]):
		return fmt.Errorf("container ID %q: want letters, digits, \"_\", \".\" and \"-\"", o.ContainerID)
	case o.IfName == "" || o.IfName == "." || o.IfName == ".." || len(o.IfName) > 15 ||
		strings.ContainsAny(o.IfName, "/: \t\n\v\f\r\x00"):
		return fmt.Errorf("%q is no name of an interface", o.IfName)
	case len(o.file()) > maxName:
		return fmt.Errorf("container ID %q is longer than %d bytes", o.ContainerID, maxName-len(at)-len(o.IfName))
	}
	return nil
}

const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
