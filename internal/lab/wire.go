// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/podlink"
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
	return fmt.Sprintf("kernel %s has no %s (module %s, since Linux %s)", e.Kernel, e.Feature, e.Module, e.Since)
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

// addWire connects two hosts with a veth pair.
func (l *Lab) addWire(a, b *netns.Namespace) error {
	if l.Options.WireRate > 0 {
		if err := requireQdisc(a, "tbf", "2.2"); err != nil {
			return err
		}
	}
	if l.Options.WireDelay > 0 {
		if err := requireQdisc(a, "netem", "2.6.8"); err != nil {
			return err
		}
	}
	return rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: Uplink}, rtnl.VethEnd{Namespace: b, Name: Uplink}, podlink.DefaultMTU)
}

// limitWire sets the rate and the delay of the wire on both ends.
func (l *Lab) limitWire(hosts ...*netns.Namespace) error {
	rate, delay := l.Options.WireRate, l.Options.WireDelay
	if rate == 0 && delay == 0 {
		return nil
	}
	for _, host := range hosts {
		if err := qdisc.Emulate(host, Uplink, rate, delay); err != nil {
			return err
		}
	}
	return nil
}

// rateUnits are the units of rates as tc writes them, in bits per second. Units that
// end with another one come first.
var rateUnits = []struct {
	name string
	bits float64
}{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// ParseRate parses a rate such as "10gbit" or "1.5mbit" and returns bits per second.
func ParseRate(text string) (uint64, error) {
	for _, unit := range rateUnits {
		number, ok := strings.CutSuffix(strings.ToLower(text), unit.name)
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(number, 64)
		if bits := value * unit.bits; err == nil && bits >= 1 && bits <= math.MaxUint32*8 {
			return uint64(bits), nil
		}
		break
	}
	return 0, fmt.Errorf("invalid rate %q: want a number and gbit, mbit, kbit or bit, such as 10gbit, at most 34gbit", text)
}
