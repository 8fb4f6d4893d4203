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
	Speed int
	// Duplex is "full", "half" or "unknown"; or empty.
	Duplex string
	// Driver is the name of the device's driver.
	Driver string
	// Offloads maps the short names of the device's offloads to whether they are on: tso, gso, gro, lro, uso (UDP
	// segmentation), big-tcp (TCP packets of more than 64 KiB), sg (scatter and gather), tx-checksum, rx-checksum.
	Offloads map[string]bool
}

// features maps short names to the kernel's names. An offload with several names is on if one of them is.
func features() map[string][]string {
	return map[string][]string{
		"tso":         {"tx-tcp-segmentation", "tx-tcp6-segmentation"},
		"gso":         {"tx-generic-segmentation"},
		"gro":         {"rx-gro"},
		"lro":         {"rx-lro"},
		"uso":         {"tx-udp-segmentation"},
		"sg":          {"tx-scatter-gather"},
		"tx-checksum": {"tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"},
		"rx-checksum": {"rx-checksum"},
	}
}

// readHardware queries ethtool for devices by name. It skips devices that are gone.
func readHardware(n *netns.Namespace, devices []string) (map[string]Hardware, error) {
	out := map[string]Hardware{}
	err := n.Do(func() error {
		handle, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer handle.Close()
		for _, device := range devices {
			out[device] = hardwareOf(handle, device)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask ethtool in network namespace %q: %w", n.Name(), err)
	}
	return out, nil
}

// hardwareOf queries one device and omits what it does not report.
func hardwareOf(handle *ethtool.Ethtool, device string) Hardware {
	var h Hardware
	if driver, err := handle.DriverName(device); err == nil {
		h.Driver = driver
	}
	// Not the newer GetLinkSettings: it asks the kernel without agreeing on a size
	// first, and then says so on stdout.
	var settings ethtool.EthtoolCmd
	if speed, err := handle.CmdGet(&settings, device); err == nil {
		h.Speed = int(int32(speed))
		switch settings.Duplex {
		case 0:
			h.Duplex = "half"
		case 1:
			h.Duplex = "full"
		default:
			h.Duplex = "unknown"
		}
	}
	state, err := handle.FeaturesWithState(device)
	if err != nil {
		return h
	}
	h.Offloads = map[string]bool{}
	for short, names := range features() {
		for _, name := range names {
			feature, ok := state[name]
			// Some are off and can't be switched on: the device doesn't have them.
			if ok && (feature.Active || feature.Available) {
				h.Offloads[short] = h.Offloads[short] || feature.Active
			}
		}
	}
	return h
}
