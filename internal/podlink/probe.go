// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// requirement is a kind of device that a mode is made of.
type requirement struct {
	feature, module, since string
	// try makes such a device in an empty namespace.
	try func(s side) error
}

// enotsupp is what the kernel answers where it was built without mode l3s. It
// has no name outside the kernel.
const enotsupp = unix.Errno(524)

// probe tries what a mode requires, one after the other, in one throw-away
// namespace.
func probe(mode string, requirements ...requirement) error {
	ns, err := nl.NewNamespace()
	if err != nil {
		return fmt.Errorf("probe link mode %s: %w", mode, err)
	}
	defer ns.Close()
	s, err := openSide(ns)
	if err != nil {
		return fmt.Errorf("probe link mode %s: %w", mode, err)
	}
	defer s.Close()
	for _, r := range requirements {
		err := r.try(s)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, enotsupp) {
			return &UnsupportedError{
				Mode: mode, Feature: r.feature, Module: r.module, Since: r.since, Kernel: kernelRelease(), Err: err,
			}
		}
		if err != nil {
			return fmt.Errorf("probe link mode %s: create %s: %w", mode, r.feature, err)
		}
	}
	return nil
}

// probeName is the device that needsVeth makes, for others to build on.
const probeName = "probe0"

func needsVeth() requirement {
	return requirement{feature: "veth devices", module: "veth", since: "2.6.24", try: func(s side) error {
		return s.LinkAdd(&netlink.Veth{LinkAttrs: attrs(probeName), PeerName: "probe1", PeerTxQLen: -1})
	}}
}

// attrs are the attributes of a new device with the kernel's defaults.
func attrs(name string) netlink.LinkAttrs {
	out := netlink.NewLinkAttrs()
	out.Name = name
	return out
}
