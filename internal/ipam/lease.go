// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
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

const (
	separator = "@" // between the parts of a file's name: no address and no container ID contains it
	maxOwner  = 200 // bytes of an owner's names: a file's name has up to 255, and an address takes 39

	alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
)

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
	case len(o.ContainerID)+len(o.IfName) > maxOwner:
		return fmt.Errorf("container ID %q is longer than %d bytes", o.ContainerID, maxOwner-len(o.IfName))
	}
	return nil
}

// Lease is a reserved address with its subnet and gateway.
type Lease struct {
	Owner   Owner
	Address netip.Addr
	Subnet  netip.Prefix
	Gateway netip.Addr
}

func (l Lease) file() string {
	return strings.Join([]string{l.Address.String(), l.Owner.ContainerID, l.Owner.IfName}, separator)
}

func parseName(file string) (l Lease, ok bool) {
	text, owner, _ := strings.Cut(file, separator)
	l.Address, _ = netip.ParseAddr(text)
	l.Owner.ContainerID, l.Owner.IfName, _ = strings.Cut(owner, separator)
	return l, l.Address.Zone() == "" && l.file() == file && l.Owner.validate() == nil
}
