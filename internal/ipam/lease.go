// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
)

// Owner is the holder of addresses: an interface of a container.
type Owner struct {
	ContainerID string `json:"container"` // letters, digits, "_", "." and "-"; the first is a letter or digit
	IfName      string `json:"interface"` // a Linux device name: up to 15 bytes without "/", ":" and space
}

// String returns a text like "interface eth0 of container 3f2a9c".
func (o Owner) String() string { return "interface " + o.IfName + " of container " + o.ContainerID }

// separator separates the parts of an owner's file name. No container ID and no address contains it.
const separator = "@"

// maxName is the maximum length of a file name in bytes (NAME_MAX).
const maxName = 255

func (o Owner) file() string { return o.ContainerID + separator + o.IfName }

// parseOwner parses an owner's file name.
func parseOwner(file string) (Owner, bool) {
	id, ifName, found := strings.Cut(file, separator)
	o := Owner{id, ifName}
	return o, found && o.validate() == nil
}

const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

// validate rejects names that the CNI specification does not allow, so that no file name leaves the directory.
func (o Owner) validate() error {
	switch {
	case o.ContainerID == "":
		return errors.New("empty container ID")
	case strings.Trim(o.ContainerID, alphanumeric+"_.-") != "" || !strings.Contains(alphanumeric, o.ContainerID[:1]):
		return fmt.Errorf("invalid container ID %q: want letters, digits, \"_\", \".\" and \"-\"", o.ContainerID)
	case o.IfName == "" || o.IfName == "." || o.IfName == ".." || len(o.IfName) > 15 ||
		strings.ContainsAny(o.IfName, "/: \t\n\v\f\r\x00"):
		return fmt.Errorf("invalid interface name %q", o.IfName)
	case len(o.file()) > maxName:
		return fmt.Errorf("container ID %q is longer than %d bytes", o.ContainerID, maxName-len(separator)-len(o.IfName))
	}
	return nil
}

// Lease is a reserved address with its subnet and gateway.
type Lease struct {
	Owner   Owner        `json:"-"`
	Address netip.Addr   `json:"address"`
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway"`
}

func addressesOf(leases []Lease) []netip.Addr {
	addrs := make([]netip.Addr, len(leases))
	for i, l := range leases {
		addrs[i] = l.Address
	}
	return addrs
}

// FullError reports a set without a free address.
type FullError struct {
	Ranges RangeSet
	InUse  int // number of addresses in use, all that the ranges have
}

func (e *FullError) Error() string {
	return fmt.Sprintf("no free address in %s: %d in use", e.Ranges, e.InUse)
}

// HasLeasesError reports that an owner already has addresses. It matches [fs.ErrExist].
type HasLeasesError struct {
	Addresses []netip.Addr
}

func (e *HasLeasesError) Error() string {
	names := make([]string, len(e.Addresses))
	for i, addr := range e.Addresses {
		names[i] = addr.String()
	}
	return strings.Join(names, ", ") + " already reserved"
}

// Is makes the error match [fs.ErrExist].
func (e *HasLeasesError) Is(target error) bool { return target == fs.ErrExist }
