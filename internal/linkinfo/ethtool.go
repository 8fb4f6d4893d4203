// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"fmt"

	"github.com/safchain/ethtool"

	"mustang/internal/netns"
)

// SpeedUnknown is the speed of a device without a meaningful speed at the moment.
const SpeedUnknown = -1

// Hardware is the information of ethtool about a device; zero where the device reports nothing. The speeds of virtual
// devices are fictitious and do not limit them.
type Hardware struct {
	// Speed is the nominal speed in Mbit/s, SpeedUnknown, or 0 if the device does not report one.
	Speed int `json:"-"`
	// Duplex is "full", "half" or "unknown"; or empty.
	Duplex string `json:"duplex,omitempty"`
	// Driver is the name of the device's driver.
	Driver string `json:"driver,omitempty"`
	// Offloads maps the short names of the device's offloads to whether they are on: tso, gso, gro, lro, uso (UDP
	// segmentation), big-tcp (TCP packets of more than 64 KiB), sg (scatter and gather), tx-checksum, rx-checksum.
	Offloads map[string]bool `json:"offloads"`
}

// features maps short names to the kernel's names. An offload with several names is on if one of them is.
var features = map[string][]string{
	"tso":         {"tx-tcp-segmentation", "tx-tcp6-segmentation"},
	"gso":         {"tx-generic-segmentation"},
	"gro":         {"rx-gro"},
	"lro":         {"rx-lro"},
	"uso":         {"tx-udp-segmentation"},
	"sg":          {"tx-scatter-gather"},
	"tx-checksum": {"tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"},
	"rx-checksum": {"rx-checksum"},
}

// readHardware queries ethtool for links and omits what they do not report, all of a device that is gone.
func readHardware(n *netns.Namespace, links []Link) error {
	err := n.Do(func() error {
		handle, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer handle.Close()
		for i := range links {
			links[i].Hardware.read(handle, links[i].Name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ask ethtool in network namespace %q: %w", n.Name(), err)
	}
	return nil
}

func (h *Hardware) read(handle *ethtool.Ethtool, device string) {
	h.Driver, _ = handle.DriverName(device)
	// Not the newer GetLinkSettings: it asks the kernel without agreeing on a size first, and then says so on stdout.
	var settings ethtool.EthtoolCmd
	if speed, err := handle.CmdGet(&settings, device); err == nil {
		h.Speed, h.Duplex = int(int32(speed)), "unknown"
		if settings.Duplex < 2 {
			h.Duplex = []string{"half", "full"}[settings.Duplex]
		}
	}
	state, err := handle.FeaturesWithState(device)
	if err != nil {
		h.Offloads = nil
		return
	}
	if h.Offloads == nil {
		h.Offloads = map[string]bool{}
	}
	for short, names := range features {
		for _, name := range names {
			// Some are off and can't be switched on: the device doesn't have them.
			if feature, ok := state[name]; ok && (feature.Active || feature.Available) {
				h.Offloads[short] = h.Offloads[short] || feature.Active
			}
		}
	}
}
