// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"

	"mustang/internal/podlink"
)

// plugged is a pod that is plugged into a network.
type plugged struct {
	name string // its place
	ips  []netip.Addr
}

// plug makes a pod and plugs it in. A guest is plugged in, and boots with
// [Lab.Start].
func (l *Lab) plug(mode podlink.Mode, network podlink.Network, pod plugged) error {
	if l.Options.guest(pod.name) {
		return l.plugGuest(mode, network, pod)
	}
	ns, err := l.addPlace(pod.name, podSysctls)
	if err != nil {
		return err
	}
	attachment, err := mode.Create(network, podlink.Pod{
		Namespace: ns, IfName: IfName, HostIfName: HostIfName(pod.name), Addresses: pod.ips,
	})
	if err != nil {
		return err
	}
	l.devices[pod.name] = attachment.IfName
	if mode.Needs() == podlink.NeedsRelay {
		return l.startRelay(network.Host, pod.name, mode.Name() == "tap")
	}
	return nil
}
