// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
)

// UnsupportedError reports a feature that a lab needs and the running kernel lacks. It
// matches errors.ErrUnsupported.
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

// requireQdisc returns an *UnsupportedError if the kernel lacks a queueing discipline.
func requireQdisc(host *netns.Namespace, kind, since string) error {
	err := rtnl.In(host).TryQdisc(kind)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return &UnsupportedError{
		Feature: kind + " queues", Module: "sch_" + kind, Since: since, Kernel: kernelRelease(), Err: err,
	}
}

// kernelRelease returns the release of the running kernel.
func kernelRelease() string {
	var name unix.Utsname
	_ = unix.Uname(&name) // cannot fail with a valid buffer
	return unix.ByteSliceToString(name.Release[:])
}

// addWire connects two hosts.
func (l *Lab) addWire(a, b *netns.Namespace) error {
	if err := requireEmulation(a, l.Options.WireRate, l.Options.WireDelay); err != nil {
		return err
	}
	return joinHosts(a, Uplink, b, Uplink)
}

// requireEmulation returns an *UnsupportedError if the kernel cannot give a wire that rate or delay.
func requireEmulation(host *netns.Namespace, rate uint64, delay time.Duration) error {
	if rate > 0 {
		if err := requireQdisc(host, "tbf", "2.2"); err != nil {
			return err
		}
	}
	if delay > 0 {
		return requireQdisc(host, "netem", "2.6.8")
	}
	return nil
}

// limitWire sets the rate and the delay of the wire on both ends.
func (l *Lab) limitWire(hosts ...*netns.Namespace) error {
	for _, host := range hosts {
		if err := emulate(host, Uplink, l.Options.WireRate, l.Options.WireDelay); err != nil {
			return err
		}
	}
	return nil
}

// emulate gives the end of a wire a rate and a delay, if it has one.
func emulate(host *netns.Namespace, device string, rate uint64, delay time.Duration) error {
	if rate == 0 && delay == 0 {
		return nil
	}
	return qdisc.Emulate(host, device, rate, delay)
}
