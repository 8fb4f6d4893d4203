// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// ChecksumFault looks for the fault by which what is sent through VXLAN arrives
// with a wrong checksum and is dropped: some kernels and network cards leave the
// checksum inside a tunnel to each other. It sends full packets between the
// pods, TCP and UDP of both families, and reads the receivers' counters.
//
// If there are faults it turns off the checksum offload of the tunnel's devices,
// which is what helps, and says so in the text. Without a fault the text is
// empty. It is an error if the lab has no overlay, or if packets get lost
// without a fault; it matches errors.ErrUnsupported if the pods are guests.
func (l *Lab) ChecksumFault(ctx context.Context) (_ string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("lab %s: look for checksum faults: %w", l.Options.Name, err)
		}
	}()
	switch {
	case !l.Options.overlaid():
		return "", errors.New("it has no overlay")
	case l.namespaces[PodA] == nil || l.namespaces[PodB] == nil:
		return "", fmt.Errorf("its pods are not here: %w", errors.ErrUnsupported)
	}
	before, err := l.tunnelFaults(ctx)
	if err != nil || before == (nl.ChecksumErrors{}) {
		return "", err
	}
	text := fmt.Sprintf("%d TCP and %d UDP packets came through VXLAN with a wrong checksum", before.TCP, before.UDP)
	switched, err := l.sumBeforeTunnel()
	if err != nil {
		return "", err
	}
	if len(switched) == 0 {
		return text + ", and no device of the tunnel offloads checksums", nil
	}
	text += "; checksum offload was turned off on " + strings.Join(switched, " and ")
	after, err := l.tunnelFaults(ctx)
	if after != (nl.ChecksumErrors{}) {
		text += fmt.Sprintf("; %d TCP and %d UDP packets still do", after.TCP, after.UDP)
	}
	return text, err
}

// tunnelFaults sends packets between the pods, and counts those that arrived
// with a wrong checksum, at the pods or inside at the hosts. Then it does not
// matter whether any others arrived.
func (l *Lab) tunnelFaults(ctx context.Context) (nl.ChecksumErrors, error) {
	before, err := l.checksumErrors()
	if err != nil {
		return nl.ChecksumErrors{}, err
	}
	lost := exchangeAll(ctx, l.namespaces[PodB], l.namespaces[PodA], Addresses(l.Options, PodA))
	after, err := l.checksumErrors()
	if err != nil {
		return nl.ChecksumErrors{}, err
	}
	faults := nl.ChecksumErrors{TCP: after.TCP - before.TCP, UDP: after.UDP - before.UDP}
	if faults == (nl.ChecksumErrors{}) || ctx.Err() != nil {
		return faults, lost
	}
	return faults, nil
}

// checksumErrors adds up the counters of all places.
func (l *Lab) checksumErrors() (sum nl.ChecksumErrors, err error) {
	for _, ns := range l.namespaces {
		counted, err := ns.ChecksumErrors()
		if err != nil {
			return sum, err
		}
		sum.TCP, sum.UDP = sum.TCP+counted.TCP, sum.UDP+counted.UDP
	}
	return sum, nil
}

// sumBeforeTunnel has the kernel sum packets before it wraps them, and says on
// which devices.
func (l *Lab) sumBeforeTunnel() ([]string, error) {
	var switched []string
	for _, place := range []string{HostA, HostB} {
		for _, device := range []string{podlink.VXLANDevice, podlink.OVSVXLANDevice} {
			_, err := l.namespaces[place].Device(device)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = l.namespaces[place].FinishPackets(device)
			}
			if err != nil {
				return nil, err
			}
			switched = append(switched, device+" of "+place)
		}
	}
	return switched, nil
}
