// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// AddMacvlan creates a device inside a namespace that is a macvlan (mode bridge) of
// a device in another one, and sets it up. It is never in the parent's namespace,
// and has the parent's MTU, which is returned. It ignores what routers advertise. If
// it fails there is none.
func AddMacvlan(parent, child nl.WireEnd) (mtu int, err error) {
	defer wrap(&err, fmt.Sprintf("put a macvlan device on %q", parent.Name))
	if err := newMacvlan().Probe(); err != nil {
		return 0, err
	}
	host, err := openSide(parent.Namespace)
	if err != nil {
		return 0, err
	}
	defer host.Close()
	inside, err := openSide(child.Namespace)
	if err != nil {
		return 0, err
	}
	defer inside.Close()
	below, err := host.link(parent.Name)
	if err != nil {
		return 0, err
	}
	if below.Attrs().RawFlags&unix.IFF_UP == 0 {
		return 0, fmt.Errorf("device %q in %q is not up", parent.Name, parent.Namespace.Name())
	}
	own := attrs(child.Name)
	own.MTU = below.Attrs().MTU
	link, err := stacked{macvlan{}}.add(host, inside, below, own)
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("it is a port of a switch or a bond, or has devices of another kind: %w", err)
	}
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, inside.remove(child.Name, macvlan{}.kind()))
		}
	}()
	if err := apply(child.Namespace, device(child.Name, nil)); err != nil {
		return 0, err
	}
	if err := inside.up(link); err != nil {
		return 0, err
	}
	return own.MTU, inside.awaitCarrier(link)
}
