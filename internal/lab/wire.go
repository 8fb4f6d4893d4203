// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"

	"mustang/internal/lab/labfile"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/qdisc"
)

// UnsupportedError reports a feature that a lab or its link mode needs and the running kernel lacks.
type UnsupportedError = podlink.UnsupportedError

// limitWire sets a wire's rate and delay on both ends. If the kernel lacks one, the error is an *UnsupportedError.
func limitWire(w labfile.Wire, hosts ...*netns.Namespace) error {
	if w.Rate == 0 && w.Delay == 0 {
		return nil
	}
	queue, since := "tbf", "2.2"
	if w.Delay > 0 {
		queue, since = "netem", "2.6.8"
	}
	for _, host := range hosts {
		err := qdisc.Emulate(host, w.Device, w.Rate, w.Delay)
		if errors.Is(err, errors.ErrUnsupported) {
			err = UnsupportedError{Feature: queue + " queues", Module: "sch_" + queue, Since: since, Err: err}.Here()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (o Options) wire() labfile.Wire {
	return labfile.Wire{Device: Uplink, Rate: o.WireRate, Delay: o.WireDelay}
}
