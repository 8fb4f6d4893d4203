// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/rtnl"
)

// tunnelCheck is a tunnel between hosts, with a namespace behind each end.
type tunnelCheck struct {
	// Client and Server exchange traffic through the tunnel.
	Client, Server  *netns.Namespace
	ServerAddresses []netip.Addr
	// MTU is that of the tunnel in bytes.
	MTU int
	// Receivers are the namespaces whose counters show wrong checksums.
	Receivers []*netns.Namespace
	// Hosts are the namespaces of the tunnel's devices, by name, and Devices the names
	// that these can have.
	Hosts   map[string]*netns.Namespace
	Devices []string
}

// ChecksumFault detects checksum faults: some kernels and network cards leave the
// checksum of the packet inside a tunnel to each other, so that it arrives wrong and is
// dropped. It sends full packets of TCP and UDP through the tunnel and reads the
// receivers' counters.
//
// If there are faults it turns off the checksum offload of the tunnel's devices, which
// avoids them, and returns a description. Without faults the text is empty. Packets
// that are lost without a fault are an error.
func (t tunnelCheck) ChecksumFault(ctx context.Context) (string, error) {
	before, err := t.countFaults(ctx)
	if err != nil || before == (netstat.ChecksumErrors{}) {
		return "", err
	}
	text := fmt.Sprintf("%d TCP and %d UDP packets came through VXLAN with a wrong checksum", before.TCP, before.UDP)
	changed, err := t.disableOffloads()
	if err != nil {
		return "", err
	}
	if len(changed) == 0 {
		return text + ", and no device of the tunnel offloads checksums", nil
	}
	text += "; checksum offload was turned off on " + strings.Join(changed, " and ")
	after, err := t.countFaults(ctx)
	if after != (netstat.ChecksumErrors{}) {
		text += fmt.Sprintf("; %d TCP and %d UDP packets still do", after.TCP, after.UDP)
	}
	return text, err
}

// countFaults sends packets through the tunnel and counts those that arrived with a
// wrong checksum. Lost packets are an error only without faults.
func (t tunnelCheck) countFaults(ctx context.Context) (netstat.ChecksumErrors, error) {
	before, err := t.checksumErrors()
	if err != nil {
		return netstat.ChecksumErrors{}, err
	}
	lost := t.exchange(ctx)
	after, err := t.checksumErrors()
	if err != nil {
		return netstat.ChecksumErrors{}, err
	}
	faults := netstat.ChecksumErrors{TCP: after.TCP - before.TCP, UDP: after.UDP - before.UDP}
	if faults == (netstat.ChecksumErrors{}) || ctx.Err() != nil {
		return faults, lost
	}
	return faults, nil
}

// checksumErrors returns the sum of the counters of all receivers.
func (t tunnelCheck) checksumErrors() (sum netstat.ChecksumErrors, err error) {
	for _, ns := range t.Receivers {
		counted, err := netstat.ReadChecksumErrors(ns)
		if err != nil {
			return sum, err
		}
		sum.TCP, sum.UDP = sum.TCP+counted.TCP, sum.UDP+counted.UDP
	}
	return sum, nil
}

// disableOffloads makes the kernel complete packets before it encapsulates them,
// and returns the devices that it changed.
func (t tunnelCheck) disableOffloads() ([]string, error) {
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(t.Hosts)) {
		host := rtnl.In(t.Hosts[name])
		for _, device := range t.Devices {
			_, err := host.Device(device)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = host.DisableOffloads(device)
			}
			if err != nil {
				return nil, err
			}
			changed = append(changed, device+" of "+name)
		}
	}
	return changed, nil
}
