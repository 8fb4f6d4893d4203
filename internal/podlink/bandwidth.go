// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"

	"mustang/internal/nl"
	"mustang/internal/shaper"
)

// Bandwidth is the most that a pod receives and sends.
type Bandwidth struct {
	// ToPod is held to where the host's device of the pod sends. Packets that a
	// program hands to the pod past that device are not counted.
	ToPod nl.RateLimit
	// FromPod is held to where the pod's own device sends. Root in the pod
	// (CAP_NET_ADMIN) can take it away.
	FromPod nl.RateLimit
}

// SetBandwidth limits what a pod that is plugged in receives and sends, as
// shaper.Limit does, and ends what limits there are otherwise. It is an error to limit what
// comes to the pod in a mode without a host side, or what comes from a pod without a
// namespace. If it fails, one of the two may be set. The limits end with the
// devices.
func SetBandwidth(mode Mode, network Network, pod Pod, bandwidth Bandwidth) (err error) {
	defer wrap(&err, "limit bandwidth of pod "+fmt.Sprintf("%q", pod.name()))
	ends, err := limitedEnds(mode, network, pod, bandwidth)
	if err != nil {
		return err
	}
	for _, end := range ends {
		if err := shaper.Limit(end.ns, end.device, end.limit); err != nil {
			return err
		}
	}
	return nil
}

// CheckBandwidth returns nil, or a *DeviationError that lists in what the limits are
// not as SetBandwidth leaves them.
func CheckBandwidth(mode Mode, network Network, pod Pod, bandwidth Bandwidth) (err error) {
	ends, err := limitedEnds(mode, network, pod, bandwidth)
	if err != nil {
		return fmt.Errorf("check bandwidth of pod %q: %w", pod.name(), err)
	}
	var c checker
	for _, end := range ends {
		says, err := shaper.Deviation(end.ns, end.device, end.limit)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			c.add("device %q is missing in %q", end.device, end.ns.Name())
		case err != nil:
			return fmt.Errorf("check bandwidth of pod %q: %w", pod.name(), err)
		case says != "":
			c.add("device %q in %q %s", end.device, end.ns.Name(), says)
		}
	}
	return c.result(mode, pod)
}

// RemoveBandwidth ends the limits of SetBandwidth. It is no error if there are
// none, or if a device or the pod's namespace is gone.
func RemoveBandwidth(mode Mode, network Network, pod Pod) (err error) {
	defer wrap(&err, "end bandwidth limit of pod "+fmt.Sprintf("%q", pod.name()))
	ends, err := limitedEnds(mode, network, pod, Bandwidth{})
	if err != nil {
		return err
	}
	for _, end := range ends {
		if err := shaper.Limit(end.ns, end.device, end.limit); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// limitedEnd is a device that sends to a pod, or from it.
type limitedEnd struct {
	ns     *nl.Namespace
	device string
	limit  nl.RateLimit
}

// limitedEnds are those that a mode has.
func limitedEnds(mode Mode, network Network, pod Pod, bandwidth Bandwidth) ([]limitedEnd, error) {
	var ends []limitedEnd
	switch {
	case mode.HostSide():
		if network.Host == nil {
			return nil, errors.New("the network has no host namespace")
		}
		if err := validateName(pod.HostIfName); err != nil {
			return nil, fmt.Errorf("host's interface: %w", err)
		}
		ends = append(ends, limitedEnd{network.Host, pod.HostIfName, bandwidth.ToPod})
	case bandwidth.ToPod.Rate != 0:
		return nil, fmt.Errorf("link mode %s can't limit what comes to a pod: it has no device for that on the host", mode.Name())
	}
	switch {
	case pod.Namespace != nil:
		if err := validateName(pod.IfName); err != nil {
			return nil, fmt.Errorf("pod's interface: %w", err)
		}
		ends = append(ends, limitedEnd{pod.Namespace, pod.IfName, bandwidth.FromPod})
	case bandwidth.FromPod.Rate != 0:
		return nil, errors.New("what comes from a pod without a namespace can't be limited")
	}
	return ends, nil
}
