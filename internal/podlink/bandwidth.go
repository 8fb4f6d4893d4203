// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"mustang/internal/netns"
	"mustang/internal/qdisc"
)

// Bandwidth limits the rates at which a pod receives and sends. The zero value limits neither.
type Bandwidth struct {
	// ToPod is enforced where the host's device of the pod sends. It does not cover packets that a program delivers to
	// the pod past that device.
	ToPod qdisc.Limit
	// FromPod is enforced where the pod's own device sends; root in the pod can remove this limit. In modes with
	// Traits.HostSide it is also enforced where the host's device receives, except with a switch in user space.
	FromPod qdisc.Limit
}

// Apply sets the limits of an attached pod, and removes limits that are zero. A limit to the pod needs a mode with
// Traits.HostSide, a limit from the pod a namespace. After an error some limits may be set. Limits end with the
// devices.
func (b Bandwidth) Apply(mode Mode, network Network, pod Pod) (err error) {
	defer wrap(&err, fmt.Sprintf("limit bandwidth of pod %q", pod.name()))
	limits, err := b.deviceLimits(mode, network, pod)
	if err != nil {
		return err
	}
	for _, l := range limits {
		if err := l.set(l.ns, l.device, l.limit); err != nil {
			return err
		}
	}
	return nil
}

// Check returns nil, or a *DeviationError that lists the deviations from the limits.
func (b Bandwidth) Check(mode Mode, network Network, pod Pod) (err error) {
	defer func() {
		if deviation := (*DeviationError)(nil); !errors.As(err, &deviation) {
			wrap(&err, fmt.Sprintf("check bandwidth of pod %q", pod.name()))
		}
	}()
	limits, err := b.deviceLimits(mode, network, pod)
	if err != nil {
		return err
	}
	var c checker
	for _, l := range limits {
		deviation, err := l.deviation(l.ns, l.device, l.limit)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			c.add("device %q is missing in %q", l.device, l.ns.Name())
		case err != nil:
			return err
		case deviation != "":
			c.add("device %q in %q %s", l.device, l.ns.Name(), deviation)
		}
	}
	return c.result(mode, pod)
}

// deviceLimit limits the packets that a device sends to a pod, sends from it, or receives from it.
type deviceLimit struct {
	ns        *netns.Namespace
	device    string
	limit     qdisc.Limit
	set       func(*netns.Namespace, string, qdisc.Limit) error
	deviation func(*netns.Namespace, string, qdisc.Limit) (string, error)
}

func (b Bandwidth) deviceLimits(mode Mode, network Network, pod Pod) ([]deviceLimit, error) {
	var limits []deviceLimit
	switch {
	case mode.Traits().HostSide:
		if err := cmp.Or(network.validateHost(), pod.validateHostIfName()); err != nil {
			return nil, err
		}
		limits = append(limits, deviceLimit{network.Host, pod.HostIfName, b.ToPod, qdisc.SetLimit, qdisc.Deviation},
			deviceLimit{network.Host, pod.HostIfName, b.FromPod, qdisc.SetPolice, qdisc.PoliceDeviation})
	case b.ToPod.Rate != 0:
		return nil, fmt.Errorf("link mode %s can't limit traffic to a pod: it lacks a device of the pod on the host",
			mode.Name())
	}
	switch {
	case pod.Namespace != nil:
		if err := pod.validateIfName(); err != nil {
			return nil, err
		}
		limits = append(limits, deviceLimit{pod.Namespace, pod.IfName, b.FromPod, qdisc.SetLimit, qdisc.Deviation})
	case b.FromPod.Rate != 0:
		return nil, errors.New("traffic from a pod without a namespace can't be limited")
	}
	return limits, nil
}
