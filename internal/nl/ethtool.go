// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// SpeedUnknown is the speed of a device that has no speed at the moment, or
// none that means anything.
const SpeedUnknown = -1

// Hardware is what ethtool tells of a device. What a device doesn't tell is
// zero. Speeds of virtual devices are made up: nothing holds them to theirs.
type Hardware struct {
	// Speed is the nominal speed in Mbit/s; SpeedUnknown; or 0 if the device doesn't
	// tell.
	Speed int
	// Duplex is "full", "half" or "unknown"; or empty.
	Duplex string
	// Driver is the name of the device's driver.
	Driver string
	// Offloads are those that the device has, by their short names, and whether they
	// are on: tso, gso, gro, lro, uso (UDP segmentation), sg (scatter and gather),
	// tx-checksum, rx-checksum.
	Offloads map[string]bool
}

// features are the short names of offloads with the kernel's names. An offload
// with several is on if one of them is.
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

// hardware asks for what ethtool tells of devices, by their names. One that is
// gone by now is left out.
func (n *Namespace) hardware(devices []string) (map[string]Hardware, error) {
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

// hardwareOf leaves out what the device can't be asked for.
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
