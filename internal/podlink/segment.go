// SPDX-License-Identifier: Apache-2.0

package podlink

// Segment is the name of the host's device that stands for all pods that reach each
// other by MAC address through Open vSwitch, where eBPF programs have to sit on the
// pods' own devices: on ports that are pods' devices themselves, and on all ports of
// a switch in user space, which reads packets before a program on the host could.
// It is empty for every other network.
func Segment(mode Mode, network Network) (_ string, err error) {
	if mode.Needs() != NeedsOpenVSwitch {
		return "", nil
	}
	defer wrap(&err, "find segment of "+mode.Name()+" network")
	if !mode.HostSide() {
		return network.bridge(), nil
	}
	s, err := openSwitch(network)
	if err != nil {
		return "", err
	}
	defer s.close()
	bridge, err := s.bridge(network.bridge())
	if err != nil || bridge.datapath() != OVSUserSpace {
		return "", err
	}
	return network.bridge(), nil
}
