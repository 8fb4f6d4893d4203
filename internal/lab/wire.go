// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"

	"mustang/internal/lab/labfile"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
)

// UnsupportedError reports a feature that a lab or its link mode needs and the running kernel lacks.
type UnsupportedError = podlink.UnsupportedError

// addWire connects two hosts. It returns an *UnsupportedError if the kernel cannot give the wire that rate or delay.
func addWire(w labfile.Wire, a, b *netns.Namespace) error {
	for _, queue := range []struct {
		needed      bool
		kind, since string
	}{{w.Rate > 0, "tbf", "2.2"}, {w.Delay > 0, "netem", "2.6.8"}} {
		if !queue.needed {
			continue
		}
		err := rtnl.In(a).TryQdisc(queue.kind)
		if errors.Is(err, errors.ErrUnsupported) {
			err = UnsupportedError{
				Feature: queue.kind + " queues", Module: "sch_" + queue.kind, Since: queue.since, Err: err,
			}.Here()
		}
		if err != nil {
			return err
		}
	}
	return joinHosts(a, w.Device, b, w.Device)
}

func limitWire(w labfile.Wire, hosts ...*netns.Namespace) error {
	for _, host := range hosts {
		if w.Rate == 0 && w.Delay == 0 {
			break
		}
		if err := qdisc.Emulate(host, w.Device, w.Rate, w.Delay); err != nil {
			return err
		}
	}
	return nil
}

func (o Options) wire() labfile.Wire {
	return labfile.Wire{Device: Uplink, Rate: o.WireRate, Delay: o.WireDelay}
}
