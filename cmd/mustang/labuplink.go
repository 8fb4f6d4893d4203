// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"mustang/internal/lab"
)

// uplinkFlags name a device of this machine that a lab shares.
type uplinkFlags struct{ device, addresses string }

// add adds the flags. use names their use in the help.
func (u *uplinkFlags) add(f *pflag.FlagSet, use string) {
	f.StringVar(&u.device, "uplink", "", "device of this machine whose network pods are on ("+use+")")
	f.StringVar(&u.addresses, "uplink-addresses", "",
		"two free addresses of that network, for the lab's host and its pod, such as 10.0.0.50/24,10.0.0.51/24")
}

// isSet reports whether one of the flags is set.
func (u uplinkFlags) isSet() bool { return u.device != "" || u.addresses != "" }

// parse returns the device and the addresses of the flags.
func (u uplinkFlags) parse() (lab.UplinkDevice, error) {
	if u.device == "" || u.addresses == "" {
		return lab.UplinkDevice{}, errors.New("--uplink and --uplink-addresses go together")
	}
	uplink := lab.UplinkDevice{Name: u.device}
	host, pod, _ := strings.Cut(u.addresses, ",")
	for _, address := range []struct {
		text string
		into *netip.Prefix
	}{{host, &uplink.Host}, {pod, &uplink.Pod}} {
		var err error
		if *address.into, err = netip.ParsePrefix(address.text); err != nil {
			return lab.UplinkDevice{}, fmt.Errorf("--uplink-addresses %q: want two with their network's prefix length, such as 10.0.0.50/24,10.0.0.51/24",
				u.addresses)
		}
	}
	return uplink, uplink.Check()
}
