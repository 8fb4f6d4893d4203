// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// offloads are the kernel's names of the features that decide how large the
// packets are that a device hands on, and who sums them.
var offloads = map[string]string{
	"tso":         "tx-tcp-segmentation",
	"gso":         "tx-generic-segmentation",
	"gro":         "rx-gro",
	"tx-checksum": "tx-checksum-ip-generic",
}

// Offloads returns which offloads of a device are on, by their short names: tso,
// gso, gro and tx-checksum. Those that the device does not have are left out.
func (n *Namespace) Offloads(device string) (map[string]bool, error) {
	on := map[string]bool{}
	err := n.Do(func() error {
		handle, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer handle.Close()
		features, err := handle.Features(device)
		if err != nil {
			return err
		}
		for short, name := range offloads {
			if value, ok := features[name]; ok {
				on[short] = value
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read offloads of %q in %q: %w", device, n.Name(), err)
	}
	return on, nil
}

// partialPackets are the features of a device by which it is given packets that
// are not finished: without a checksum, or longer than the MTU.
var partialPackets = []string{
	"tx-checksum-ip-generic", "tx-checksum-sctp",
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-udp-segmentation", "tx-sctp-segmentation",
}

// FinishPackets has the kernel finish packets before it sends them by a device:
// sum them, and cut them to the MTU. Where a program reads what comes out of the
// other end, such as a switch in user space, it would get them as they are.
func (n *Namespace) FinishPackets(device string) error {
	err := n.Do(func() error {
		handle, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer handle.Close()
		have, err := handle.Features(device)
		if err != nil {
			return err
		}
		off := map[string]bool{}
		for _, feature := range partialPackets {
			if _, ok := have[feature]; ok {
				off[feature] = false
			}
		}
		return handle.Change(device, off)
	})
	if err != nil {
		return fmt.Errorf("switch off offloads of device %q in %q: %w", device, n.Name(), err)
	}
	return nil
}
