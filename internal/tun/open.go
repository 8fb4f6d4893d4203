// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
	wireguard "golang.zx2c4.com/wireguard/tun"

	"mustang/internal/nl"
)

// clonePath is the file whose opening makes a descriptor for a device.
const clonePath = "/dev/net/tun"

// Limits of an MTU in bytes: the least that IPv4 takes (RFC 791), the least that
// IPv6 takes (RFC 8200), and the most that the driver takes.
const (
	MinMTU     = 68
	MinMTUIPv6 = 1280
	MaxMTU     = 65535
)

// Kind is what a device carries.
type Kind int

// The kinds of device.
const (
	TUN Kind = iota // IP packets
	TAP             // Ethernet frames
)

// String is the kind's name as users know it.
func (k Kind) String() string {
	if k == TAP {
		return "TAP"
	}
	return "TUN"
}

// Options say what Open opens.
type Options struct {
	// Name is the device's name. If it is empty, the kernel picks the first free one
	// of tun0, tun1, ... (or tap0, ...).
	Name string
	Kind Kind
	// MTU is in bytes; 0 leaves what the device has (1500 for a new one).
	MTU int
	// Offload takes and hands over packets of up to 64 KiB.
	Offload bool
	// Addresses are added to the device, with the routes to their prefixes.
	Addresses []netip.Prefix
}

// Check says what is wrong with the options, without making anything.
func (o Options) Check() error {
	if err := CheckName(o.Name); o.Name != "" && err != nil {
		return err
	}
	if o.Kind != TUN && o.Kind != TAP {
		return fmt.Errorf("kind %d of device %q is neither TUN nor TAP", o.Kind, o.Name)
	}
	if o.MTU != 0 && (o.MTU < MinMTU || o.MTU > MaxMTU) {
		return fmt.Errorf("MTU %d: want %d to %d bytes", o.MTU, MinMTU, MaxMTU)
	}
	for _, address := range o.Addresses {
		if !address.IsValid() || address.Addr().Is4In6() || address.Addr().IsUnspecified() || address.Addr().IsMulticast() {
			return fmt.Errorf("address %s is none for a device", address)
		}
		if address.Addr().Is6() && o.MTU != 0 && o.MTU < MinMTUIPv6 {
			return fmt.Errorf("address %s: IPv6 needs an MTU of at least %d bytes, not %d", address, MinMTUIPv6, o.MTU)
		}
	}
	return nil
}

// CheckName says what is wrong with a device's name, by the kernel's rules
// (dev_valid_name).
func CheckName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) >= unix.IFNAMSIZ ||
		strings.ContainsAny(name, "/:% \t\n\v\f\r\x00") {
		return fmt.Errorf("%q is no name for a device (1 to %d bytes without space, /, : and %%)", name, unix.IFNAMSIZ-1)
	}
	return nil
}

// Open makes a device in ns, or opens the persistent one of that name that is
// there, and sets it up. A device that it made is gone, with its addresses and
// routes, when it is closed or when the process ends. On a persistent one,
// whatever was set stays. The namespace lives at least as long as an open device
// in it. The error names the device.
func Open(ns *nl.Namespace, options Options) (_ *Device, err error) {
	if err := options.Check(); err != nil {
		return nil, fmt.Errorf("open %s device: %w", options.Kind, err)
	}
	fail := func(err error) (*Device, error) {
		return nil, fmt.Errorf("open %s device %q in network namespace %q: %w", options.Kind, options.Name, ns.Name(), err)
	}
	fd := -1
	err = ns.Do(func() (err error) { // the device belongs to where its file was opened
		fd, err = attach(options)
		return err
	})
	if err != nil {
		return fail(err)
	}
	// The library takes over the descriptor and agrees on offloads with the kernel.
	// If it fails it has the descriptor still, and its file's finalizer closes it.
	library, name, err := wireguard.CreateUnmonitoredTUNFromFD(fd)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			_ = library.Close()
		}
	}()
	config := nl.DeviceConfig{Up: true, MTU: options.MTU, Addresses: options.Addresses}
	if err := ns.Configure(name, config); err != nil {
		return fail(err)
	}
	described, err := ns.Device(name)
	if err != nil {
		return fail(err)
	}
	return &Device{
		library: library, file: library.File(), name: name, namespace: ns.Name(),
		kind: options.Kind, offload: options.Offload, mtu: described.MTU,
	}, nil
}

// attach opens the clone file and makes or opens the device by it, on a thread
// inside the device's namespace.
func attach(options Options) (fd int, err error) {
	fd, err = unix.Open(clonePath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", clonePath, err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	ifr, err := unix.NewIfreq(options.Name)
	if err != nil {
		return -1, err
	}
	flags := uint16(unix.IFF_NO_PI)
	if options.Kind == TAP {
		flags |= unix.IFF_TAP
	} else {
		flags |= unix.IFF_TUN
	}
	if options.Offload {
		flags |= unix.IFF_VNET_HDR
	}
	ifr.SetUint16(flags)
	switch err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); {
	case errors.Is(err, unix.EBUSY):
		return -1, fmt.Errorf("another program has it open: %w", err)
	case errors.Is(err, unix.EINVAL):
		return -1, fmt.Errorf("there is a device of that name that is no %s device for one program: %w", options.Kind, err)
	case err != nil:
		return -1, err
	}
	// A persistent device keeps what the program before us agreed on.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0); err != nil {
		return -1, fmt.Errorf("switch offloads off: %w", err)
	}
	if options.Offload {
		if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, headerSize); err != nil {
			return -1, fmt.Errorf("set size of the virtio header: %w", err)
		}
	}
	return fd, nil
}
