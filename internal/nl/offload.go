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
