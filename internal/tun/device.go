// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	wireguard "golang.zx2c4.com/wireguard/tun"
)

// Device is an open TUN or TAP device. What the kernel sends out of the device
// is read from it, and what is written to it the kernel receives.
//
// It is read by one goroutine at a time; it may be written by several.
type Device struct {
	library   wireguard.Device
	file      *os.File // the library's
	name      string
	namespace string
	kind      Kind
	offload   bool
	mtu       int

	read, written flow
	dropped       atomic.Uint64
}

// flow counts one direction.
type flow struct{ packets, bytes atomic.Uint64 }

func (f *flow) add(packets, bytes int) {
	f.packets.Add(uint64(packets))
	f.bytes.Add(uint64(bytes))
}

// Counters are what went through a Device since it was opened. With offload, a
// packet is one as it is on a wire, after the cut.
type Counters struct {
	// Read is what came from the kernel, Written what went to it.
	ReadPackets, ReadBytes, WrittenPackets, WrittenBytes uint64
	// Dropped packets were read or were to be written, and the kernel or the library
	// refused them: the device was down, or they were malformed.
	Dropped uint64
}

// Name is the name that the device had when it was opened.
func (d *Device) Name() string { return d.name }

// Kind is what the device carries.
func (d *Device) Kind() Kind { return d.kind }

// Offload is whether it takes and hands over packets of up to 64 KiB.
func (d *Device) Offload() bool { return d.offload }

// MTU is what the device had when it was opened, in bytes.
func (d *Device) MTU() int { return d.mtu }

// Counters returns what went through so far.
func (d *Device) Counters() Counters {
	return Counters{
		ReadPackets: d.read.packets.Load(), ReadBytes: d.read.bytes.Load(),
		WrittenPackets: d.written.packets.Load(), WrittenBytes: d.written.bytes.Load(),
		Dropped: d.dropped.Load(),
	}
}

// Close closes the device, which ends it unless it is persistent. Whatever
// waits for it fails.
func (d *Device) Close() error {
	if err := d.library.Close(); err != nil {
		return fmt.Errorf("close %s: %w", d, err)
	}
	return nil
}

// String says which device it is, and where.
func (d *Device) String() string {
	return fmt.Sprintf("%s device %q in network namespace %q", d.kind, d.name, d.namespace)
}

// interrupt makes reads fail with os.ErrDeadlineExceeded from now on.
func (d *Device) interrupt() { _ = d.file.SetReadDeadline(time.Unix(1, 0)) }

// resume undoes interrupt.
func (d *Device) resume() { _ = d.file.SetReadDeadline(time.Time{}) }

// fatal is what an error of a read or write means for the device: nil if only
// that packet is lost.
func (d *Device) fatal(err error) error {
	var pathErr *os.PathError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.Is(err, os.ErrClosed), d.gone():
		return fmt.Errorf("%s is gone: %w", d, err)
	case !errors.As(err, &pathErr), // the library makes nothing of this packet
		errors.Is(err, io.EOF),      // an empty packet
		errors.Is(err, unix.EIO),    // the device is down
		errors.Is(err, unix.EINVAL), // the kernel makes nothing of this packet
		errors.Is(err, unix.ENOBUFS),
		errors.Is(err, unix.ENOMEM):
		d.dropped.Add(1)
		return nil
	}
	return fmt.Errorf("%s: %w", d, err)
}

// gone is whether somebody has deleted the device.
func (d *Device) gone() bool {
	conn, err := d.file.SyscallConn()
	if err != nil {
		return true
	}
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return false
	}
	var got error
	err = conn.Control(func(fd uintptr) { got = unix.IoctlIfreq(int(fd), unix.TUNGETIFF, ifr) })
	return err != nil || got != nil
}
