// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// UnsupportedError says that the running kernel lacks what a lab needs.
type UnsupportedError struct {
	Feature string // what is missing, like "netem queues"
	Module  string // the kernel module that has it
	Since   string // the Linux version that first had it
	Kernel  string // the release that runs
	Err     error  // what the kernel answered
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("kernel %s has no %s (module %s, since Linux %s)", e.Kernel, e.Feature, e.Module, e.Since)
}

func (e *UnsupportedError) Unwrap() error { return e.Err }

// Is makes the error match errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// queues are the queueing disciplines of a wire, with the Linux that first had
// them.
var queues = map[string]string{"tbf": "2.2", "netem": "2.6.8"}

// requireQueue is an *UnsupportedError if the kernel lacks a queueing discipline.
func requireQueue(host *nl.Namespace, kind string) error {
	err := host.TryQdisc(kind)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	var name unix.Utsname
	_ = unix.Uname(&name) // the release is then empty
	return &UnsupportedError{
		Feature: kind + " queues", Module: "sch_" + kind, Since: queues[kind],
		Kernel: unix.ByteSliceToString(name.Release[:]), Err: err,
	}
}

// addWire joins the two hosts by a wire.
func (l *Lab) addWire(a, b *nl.Namespace) error {
	if l.Options.WireRate > 0 {
		if err := requireQueue(a, "tbf"); err != nil {
			return err
		}
	}
	if l.Options.WireDelay > 0 {
		if err := requireQueue(a, "netem"); err != nil {
			return err
		}
	}
	return nl.AddWire(nl.WireEnd{Namespace: a, Name: Uplink}, nl.WireEnd{Namespace: b, Name: Uplink}, podlink.DefaultMTU)
}

// slowWire gives both ends of the wire its rate and delay.
func (l *Lab) slowWire(hosts ...*nl.Namespace) error {
	shape := nl.Shape{Rate: l.Options.WireRate, Delay: l.Options.WireDelay}
	if shape == (nl.Shape{}) {
		return nil
	}
	for _, host := range hosts {
		if err := host.Shape(Uplink, shape); err != nil {
			return err
		}
	}
	return nil
}
