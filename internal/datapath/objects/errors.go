// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
)

var (
	// ErrNotRoot is returned by calls that need root's privileges.
	ErrNotRoot = errors.New("the datapath needs root")
	// ErrNoBPFFS reports that a root is not on a BPF file system.
	ErrNoBPFFS = errors.New("not on a BPF file system: mount one with `mount -t bpf bpf /sys/fs/bpf`")
)

// UnsupportedError names a feature that the running kernel lacks, and the version that has it.
type UnsupportedError struct {
	Feature, Kernel string
	// Option is the missing option of the kernel's configuration, if the kernel is new enough; empty: it is too old.
	Option string
	Err    error
}

func (e *UnsupportedError) Error() string {
	if e.Option != "" {
		return "this kernel is built without " + e.Option
	}
	return fmt.Sprintf("this kernel lacks %s, which is in Linux since %s: %v", e.Feature, e.Kernel, e.Err)
}

// Unwrap returns the kernel's error.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// Is makes the error match errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// LayoutError reports that the layout of the pinned maps differs from this build's.
type LayoutError struct {
	Root        string
	Found, Want string
}

func (e *LayoutError) Error() string {
	return fmt.Sprintf("%q holds maps of layout %s, and this build has layout %s: mustang reset deletes them, and ends "+
		"all connections through services",
		e.Root, e.Found, e.Want)
}
