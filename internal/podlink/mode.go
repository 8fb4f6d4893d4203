// SPDX-License-Identifier: Apache-2.0

// Package podlink plugs pods into a host: one link mode per way that Linux has
// to do it.
//
// Most modes differ in how the two ends of a link are made (wiring: veth, netkit,
// TUN and TAP devices), and in what the host does with its end: it routes by it
// (routed), or it has it switched by a bridge (bridged). Others have no end on the
// host: the devices sit on an uplink that all share (stacked: macvlan and ipvlan).
// Open vSwitch is a world of its own (ovs).
//
// All devices are created in the namespace where they belong. They are never
// moved there, so nothing appears in passing in the host or in the root
// namespace (but for mode ovs-internal, whose devices pass through the host).
// Addresses skip duplicate address detection, and Create returns when the devices
// can carry packets: a pod can connect at once, in IPv6 too. Where a program is to
// carry the packets, that is when the program has opened the devices; addresses
// and routes are there before.
package podlink

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Mode is a way to plug a pod into a host. The modes are those of this package.
type Mode interface {
	// Name is what users call the mode, like "veth".
	Name() string
	// HostSide reports whether each pod has a device on the host, where programs
	// attach. Otherwise they attach to the pod's own device.
	HostSide() bool
	// Routed reports whether all that a pod sends passes the host's routing, what goes
	// to another pod too. Otherwise pods of one network reach each other directly.
	Routed() bool
	// Switched reports whether the pods and the host are neighbours on one network,
	// where another than the host may be the router (Network.Routers).
	Switched() bool
	// Needs says what must be there besides a host and a pod.
	Needs() Need
	// Probe tries the mode in a throw-away namespace. It returns nil, or an
	// *UnsupportedError if this kernel lacks the mode.
	Probe() error
	// Setup makes what the pods of a network share on its host. Called again, it
	// repairs what is missing, and changes nothing else, and that is quick enough to
	// be done before each Create. Several may run at once, in several processes, if
	// the modes of Open vSwitch are not among them.
	Setup(network Network) error
	// Teardown removes from the host what Setup made, but leaves forwarding on,
	// since others may rely on it. It is no error if there is nothing. Pods must
	// be deleted before.
	Teardown(network Network) error
	// Create plugs a pod into a network that is set up. If it fails, it has undone
	// all that it did. The error matches fs.ErrExist if a device name is taken.
	Create(network Network, pod Pod) (Attachment, error)
	// Check returns nil, or a *DeviationError that lists what is not as Setup and
	// Create leave it.
	Check(network Network, pod Pod) error
	// Delete removes what Create made. It is no error if it is gone, or if the
	// pod's namespace is (pod.Namespace may be nil then). pod.Addresses tell which of
	// the host's routes are the pod's.
	Delete(network Network, pod Pod) error

	sealed()
}

// Need is what a link mode builds on.
type Need int

// What link modes need.
const (
	// NeedsNothing but the two namespaces.
	NeedsNothing Need = iota
	// NeedsUplink is for modes whose devices sit on Network.Uplink.
	NeedsUplink
	// NeedsOpenVSwitch is for modes that plug pods into a running Open vSwitch,
	// which answers at Network.OVSDB.
	NeedsOpenVSwitch
	// NeedsRelay is for modes in which a program carries the packets between the
	// device on the host and the one in the pod. It must open both (TUNSETIFF, each
	// in its namespace) after Create; until then they have no carrier.
	NeedsRelay
)

// Modes returns all link modes, in the order in which they are listed to users.
func Modes() []Mode {
	return []Mode{
		newVeth(), newBridge(), newMacvlan(), newIPVLANL2(), newIPVLANL3(), newIPVLANL3S(),
		newNetkit(), newNetkitL2(), newOVSVeth(), newOVSInternal(), newTap(), newTun(),
	}
}

// GuestModes returns the link modes that are for pods without a namespace only,
// such as VMs, which bring their own end of the link.
func GuestModes() []Mode { return []Mode{newOVSTap()} }

// Lookup returns the mode of that name, or an *UnknownModeError.
func Lookup(name string) (Mode, error) {
	for _, mode := range GuestModes() {
		if mode.Name() == name {
			return mode, nil
		}
	}
	var known []string
	for _, mode := range Modes() {
		if mode.Name() == name {
			return mode, nil
		}
		known = append(known, mode.Name())
	}
	return nil, &UnknownModeError{Name: name, Known: known}
}

// UnknownModeError says that there is no link mode of that name.
type UnknownModeError struct {
	Name  string
	Known []string // the names that there are
}

func (e *UnknownModeError) Error() string {
	return fmt.Sprintf("unknown link mode %q (there are: %s)", e.Name, strings.Join(e.Known, ", "))
}

// UnsupportedError says that the running kernel lacks what a link mode needs.
type UnsupportedError struct {
	Mode    string // name of the link mode
	Feature string // what is missing, like "macvlan devices"
	Module  string // the kernel module that has it
	Since   string // the Linux version that first had it
	Kernel  string // the release that runs
	Err     error  // what the kernel answered; or nil
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("link mode %s: kernel %s has no %s (module %s, since Linux %s)",
		e.Mode, e.Kernel, e.Feature, e.Module, e.Since)
}

func (e *UnsupportedError) Unwrap() error { return e.Err }

// Is makes the error match errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// DeviationError says in what a pod's link is not as it should be.
type DeviationError struct {
	Mode, Pod  string   // names of the link mode and of the pod's namespace
	Deviations []string // in the order in which they were found
}

func (e *DeviationError) Error() string {
	return fmt.Sprintf("check %s link of pod %q: %s", e.Mode, e.Pod, strings.Join(e.Deviations, "; "))
}

// kernelRelease is the release of the running kernel, like "6.12.9-amd64".
func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "(unknown)"
	}
	return unix.ByteSliceToString(name.Release[:])
}
