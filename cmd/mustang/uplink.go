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

// uplinkFlags name a device of this machine that a lab is joined to.
type uplinkFlags struct{ device, addresses string }

// add adds the flags. when says for what they are.
func (u *uplinkFlags) add(f *pflag.FlagSet, when string) {
	f.StringVar(&u.device, "uplink", "", "device of this machine whose network pods are on ("+when+")")
	f.StringVar(&u.addresses, "uplink-addresses", "",
		"two free addresses of that network, for the lab's host and its pod, such as 10.0.0.50/24,10.0.0.51/24")
}

// given reports whether one of the flags is.
func (u uplinkFlags) given() bool { return u.device != "" || u.addresses != "" }

// parent returns what the flags name.
func (u uplinkFlags) parent() (lab.Parent, error) {
	if u.device == "" || u.addresses == "" {
		return lab.Parent{}, errors.New("--uplink and --uplink-addresses go together")
	}
	parent := lab.Parent{Device: u.device}
	host, pod, _ := strings.Cut(u.addresses, ",")
	for _, each := range []struct {
		text string
		into *netip.Prefix
	}{{host, &parent.Host}, {pod, &parent.Pod}} {
		var err error
		if *each.into, err = netip.ParsePrefix(each.text); err != nil {
			return lab.Parent{}, fmt.Errorf("--uplink-addresses %q: want two with their network's prefix length, such as 10.0.0.50/24,10.0.0.51/24",
				u.addresses)
		}
	}
	return parent, parent.Check()
}
