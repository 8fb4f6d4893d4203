// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"mustang/internal/nl"
	"mustang/internal/tun"
)

// tunFlags are the flags of mustang tun as they were given.
type tunFlags struct {
	ifnames, addresses              []string
	mtu                             int
	mtuGiven                        bool
	offload, tap, stats, echo, join bool
}

// tunSpec is a device to open.
type tunSpec struct {
	given   string // what --ifname said
	netns   string // the path of its namespace; empty for the one of this process
	options tun.Options
}

// parse says which devices to open, or what is wrong with the flags.
func (f tunFlags) parse() ([]tunSpec, error) {
	if err := f.combination(); err != nil {
		return nil, err
	}
	ifnames := f.ifnames
	if len(ifnames) == 0 {
		ifnames = []string{""}
	}
	var specs []tunSpec
	for _, ifname := range ifnames {
		spec, err := f.spec(ifname)
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	if len(specs) == 2 && specs[0].netns == specs[1].netns && specs[0].options.Name == specs[1].options.Name {
		return nil, fmt.Errorf("--ifname %s: given twice", f.ifnames[1])
	}
	for _, address := range f.addresses {
		if err := assignAddress(specs, address); err != nil {
			return nil, fmt.Errorf("--address %s: %w", address, err)
		}
	}
	for _, spec := range specs {
		if err := spec.options.Check(); err != nil {
			return nil, err
		}
	}
	return specs, nil
}

// combination says which flags don't go together.
func (f tunFlags) combination() error {
	switch {
	case f.join && f.echo:
		return errors.New("--switch and --echo: want one of them")
	case f.join && len(f.ifnames) != 2:
		return fmt.Errorf("--switch: want --ifname twice, not %d times", len(f.ifnames))
	case !f.join && len(f.ifnames) > 1:
		return fmt.Errorf("--ifname %s: want one device without --switch", f.ifnames[1])
	case f.tap && f.echo:
		return errors.New("--tap and --echo: only the packets of TUN devices are answered")
	case f.tap && f.offload && !f.join:
		return errors.New("--tap and --offload: only with --switch")
	case f.mtuGiven && f.mtu == 0:
		return fmt.Errorf("--mtu 0: want %d to %d", tun.MinMTU, tun.MaxMTU)
	}
	return nil
}

// spec reads one --ifname, which is empty if none was given.
func (f tunFlags) spec(ifname string) (tunSpec, error) {
	name, netns, in := strings.Cut(ifname, "@")
	if ifname != "" {
		if err := tun.CheckName(name); err != nil {
			return tunSpec{}, fmt.Errorf("--ifname %s: %w", ifname, err)
		}
	}
	if in && (netns == "" || netns == "." || netns == "..") {
		return tunSpec{}, fmt.Errorf("--ifname %s: %q is no network namespace", ifname, netns)
	}
	if in && !strings.Contains(netns, "/") {
		netns = filepath.Join(nl.Directory, netns)
	}
	kind := tun.TUN
	if f.tap {
		kind = tun.TAP
	}
	options := tun.Options{Name: name, Kind: kind, MTU: f.mtu, Offload: f.offload}
	return tunSpec{given: ifname, netns: netns, options: options}, nil
}

// assignAddress gives an address, as PREFIX or PREFIX@IFNAME, to its device.
func assignAddress(specs []tunSpec, address string) error {
	text, owner, named := strings.Cut(address, "@")
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return fmt.Errorf("want an address with its prefix length, like 10.9.0.1/24")
	}
	if !named && len(specs) > 1 {
		return fmt.Errorf("which device? want %s@IFNAME", text)
	}
	var owners []int
	for i, spec := range specs {
		if !named || owner == spec.given || owner == spec.options.Name {
			owners = append(owners, i)
		}
	}
	switch len(owners) {
	case 0:
		return fmt.Errorf("no --ifname %s", owner)
	case 1:
		spec := &specs[owners[0]]
		spec.options.Addresses = append(spec.options.Addresses, prefix)
		return nil
	}
	return fmt.Errorf("both devices are named so; want %s@IFNAME@NETNS", text)
}
