// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// offloads maps short names to the kernel's names of the features that decide packet sizes and checksums.
var offloads = map[string]string{
	"tso":         "tx-tcp-segmentation",
	"gso":         "tx-generic-segmentation",
	"gro":         "rx-gro",
	"tx-checksum": "tx-checksum-ip-generic",
}

// Offloads returns which offloads of a device are on, by short name: tso, gso, gro and tx-checksum. It omits those that
// the device lacks.
func (c Conn) Offloads(device string) (map[string]bool, error) {
	on := map[string]bool{}
	err := c.withFeatures(device, func(_ *ethtool.Ethtool, features map[string]bool) error {
		for short, name := range offloads {
			if value, ok := features[name]; ok {
				on[short] = value
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read offloads of %q in %q: %w", device, c.ns.Name(), err)
	}
	return on, nil
}

// withFeatures calls do with the features of a device, by the kernel's names.
func (c Conn) withFeatures(device string, do func(*ethtool.Ethtool, map[string]bool) error) error {
	return c.ns.Do(func() error {
		handle, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer handle.Close()
		features, err := handle.Features(device)
		if err != nil {
			return err
		}
		return do(handle, features)
	})
}

// partialPackets are the features with which the kernel hands unfinished packets to a device: without a checksum, or
// longer than the MTU.
var partialPackets = []string{
	"tx-checksum-ip-generic", "tx-checksum-sctp",
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-udp-segmentation", "tx-sctp-segmentation",
}

// DisableOffloads switches off checksum and segmentation offloads of a device, so that the kernel computes checksums
// and splits packets to the MTU before it sends. A program that reads the packets at the other end, such as a
// user-space switch, needs that.
func (c Conn) DisableOffloads(device string) error {
	err := c.withFeatures(device, func(handle *ethtool.Ethtool, have map[string]bool) error {
		off := map[string]bool{}
		for _, feature := range partialPackets {
			if _, ok := have[feature]; ok {
				off[feature] = false
			}
		}
		return handle.Change(device, off)
	})
	if err != nil {
		return fmt.Errorf("switch off offloads of device %q in %q: %w", device, c.ns.Name(), err)
	}
	return nil
}
