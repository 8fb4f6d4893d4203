// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"mustang/internal/lab/labfile"
	"mustang/internal/netns"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
)

// UnsupportedError reports a feature that a lab needs and the running kernel lacks. It matches errors.ErrUnsupported.
type UnsupportedError struct {
	Feature string // such as "netem queues"
	Module  string // the kernel module that provides it
	Since   string // the first Linux version that has it
	Kernel  string // the release of the running kernel
	Err     error  // the kernel's answer
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("kernel %s lacks %s (module %s, since Linux %s)", e.Kernel, e.Feature, e.Module, e.Since)
}

func (e *UnsupportedError) Unwrap() error { return e.Err }

// Is reports whether target is errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// kernelRelease returns the release of the running kernel.
func kernelRelease() string {
	var name unix.Utsname
	_ = unix.Uname(&name) // cannot fail with a valid buffer
	return unix.ByteSliceToString(name.Release[:])
}

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
			err = &UnsupportedError{
				Feature: queue.kind + " queues", Module: "sch_" + queue.kind, Since: queue.since, Kernel: kernelRelease(), Err: err,
			}
		}
		if err != nil {
			return err
		}
	}
	return joinHosts(a, w.Device, b, w.Device)
}

// limitWire sets the rate and the delay of a wire on both ends, if it has one.
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

// wire returns the wire between two hosts.
func (o Options) wire() labfile.Wire {
	return labfile.Wire{Device: Uplink, Rate: o.WireRate, Delay: o.WireDelay}
}
