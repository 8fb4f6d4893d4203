// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"mustang/internal/lb"
)

// ErrNotRoot is returned by what needs root's privileges.
var ErrNotRoot = errors.New("the datapath needs root")

// BPFFSError says that a root lies on no BPF file system.
type BPFFSError struct {
	// Root is the directory that was asked for.
	Root string
}

func (e *BPFFSError) Error() string {
	return fmt.Sprintf("%q is on no BPF file system: mount one with `mount -t bpf bpf /sys/fs/bpf`", e.Root)
}

// UnsupportedError names what the running kernel lacks, and the version that has it.
type UnsupportedError struct {
	Feature, Kernel string
	Err             error
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("this kernel has no %s, which Linux %s brought: %v", e.Feature, e.Kernel, e.Err)
}

// Unwrap returns what the kernel said.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// Is makes the error match errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// LayoutError says that what is pinned was made by another version of Mustang, with other maps.
type LayoutError struct {
	Root        string
	Found, Want string
}

func (e *LayoutError) Error() string {
	return fmt.Sprintf("%q holds maps of layout %s, and this program has layout %s: remove them first, with the program "+
		"that made them", e.Root, e.Found, e.Want)
}

// NotFoundError says what was looked for and is not there. It matches os.ErrNotExist.
type NotFoundError struct {
	// What is for people: `service 10.96.0.100:5201/tcp`.
	What string
}

func (e *NotFoundError) Error() string { return e.What + " does not exist" }

// Is makes the error match os.ErrNotExist.
func (e *NotFoundError) Is(target error) bool { return target == os.ErrNotExist }

// ConflictError says that another service or endpoint, which is in use, has what was asked for.
type ConflictError struct {
	// What is for people, and names the other one.
	What string
}

func (e *ConflictError) Error() string { return e.What }

// FullError says that a map has no room left. Its size is given when the datapath is first opened.
type FullError struct {
	Map  string
	Size uint32
}

func (e *FullError) Error() string {
	return fmt.Sprintf("all %d rows of the map %q are taken", e.Size, e.Map)
}

func serviceNotFound(frontend netip.AddrPort, p lb.Protocol) error {
	return &NotFoundError{What: fmt.Sprintf("service %s", lb.Service{Frontend: frontend, Protocol: p})}
}

func endpointNotFound(ip netip.Addr) error {
	return &NotFoundError{What: fmt.Sprintf("endpoint %s", ip)}
}
