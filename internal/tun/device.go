// SPDX-License-Identifier: Apache-2.0

// Package tun handles packets of TUN or TAP devices in user space.
//
// With offload, the kernel delivers and accepts TCP and UDP packets of up to 64 KiB, each with a header that describes
// its segmentation (struct virtio_net_hdr). The library golang.zx2c4.com/wireguard segments and merges them where
// packets are decoded. Switch forwards them whole.
package tun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	wireguard "golang.zx2c4.com/wireguard/tun"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Device is an open TUN or TAP device. Reads return packets that the kernel sends
// through the device; the kernel receives packets that are written.
//
// Only one goroutine may read at a time. Writes are safe for concurrent use.
type Device struct {
	library   wireguard.Device
	file      *os.File // the library's
	name      string
	namespace string
	kind      Kind
	offload   bool
	mtu       int

	read, written flowCount
	dropped       atomic.Uint64
}

type flowCount struct{ packets, bytes atomic.Uint64 }

func (f *flowCount) add(packets, bytes int) {
	f.packets.Add(uint64(packets))
	f.bytes.Add(uint64(bytes))
}

// Name returns the name that the device had when it was opened.
func (d *Device) Name() string { return d.name }

// Close closes the device, which deletes it unless it is persistent. Pending reads and writes fail.
func (d *Device) Close() error {
	if err := d.library.Close(); err != nil {
		return fmt.Errorf("close %s: %w", d, err)
	}
	return nil
}

// String returns the kind, the name and the namespace.
func (d *Device) String() string {
	return fmt.Sprintf("%s device %q in network namespace %q", d.kind, d.name, d.namespace)
}

// until runs functions until all end or one fails. When ctx ends, reads fail with os.ErrDeadlineExceeded.
func until(ctx context.Context, devices []*Device, run ...func() error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		for _, d := range devices {
			_ = d.file.SetReadDeadline(time.Unix(1, 0))
		}
		return nil
	})
	for _, f := range run {
		group.Go(f)
	}
	err := group.Wait()
	for _, d := range devices {
		_ = d.file.SetReadDeadline(time.Time{})
	}
	return err
}

// fatal returns the error of a read or write if it concerns the device, or nil if only the packet is lost.
func (d *Device) fatal(err error) error {
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EBADFD), errors.Is(err, unix.EFAULT): // the latter two: deleted
		return fmt.Errorf("%s is gone: %w", d, err)
	case !errors.As(err, new(*os.PathError)), // the library rejects the packet
		errors.Is(err, io.EOF),      // an empty packet
		errors.Is(err, unix.EIO),    // the device is down
		errors.Is(err, unix.EINVAL), // the kernel rejects the packet
		errors.Is(err, unix.ENOBUFS),
		errors.Is(err, unix.ENOMEM):
		d.dropped.Add(1)
		return nil
	}
	return fmt.Errorf("%s: %w", d, err)
}

const clonePath = "/dev/net/tun"

// Limits of an MTU in bytes: the minimum of IPv4 (RFC 791) and of IPv6 (RFC 8200), and the maximum of the driver.
const (
	MinMTU     = 68
	MinMTUIPv6 = 1280
	MaxMTU     = 65535
)

// Kind is the kind of a device.
type Kind int

// The kinds of device.
const (
	TUN Kind = iota // IP packets
	TAP             // Ethernet frames
)

// String returns "TUN" or "TAP".
func (k Kind) String() string { return map[Kind]string{TUN: "TUN", TAP: "TAP"}[k] }

// Options describe the device to open.
type Options struct {
	// Name is the device's name. If it is empty, the kernel picks the first free one of tun0, tun1, ... (or tap0, ...).
	Name      string
	Kind      Kind
	MTU       int            // in bytes; 0 keeps the MTU of the device (1500 for a new one)
	Offload   bool           // allows packets of up to 64 KiB
	Addresses []netip.Prefix // added to the device, with the routes to their prefixes
}

// Check returns an error for the first invalid option.
func (o Options) Check() error {
	if err := CheckName(o.Name); o.Name != "" && err != nil {
		return err
	}
	if o.Kind != TUN && o.Kind != TAP {
		return fmt.Errorf("invalid kind %d of device %q: want TUN or TAP", o.Kind, o.Name)
	}
	if o.MTU != 0 && (o.MTU < MinMTU || o.MTU > MaxMTU) {
		return fmt.Errorf("MTU %d: want %d to %d bytes", o.MTU, MinMTU, MaxMTU)
	}
	for _, address := range o.Addresses {
		if !address.IsValid() || address.Addr().Is4In6() || address.Addr().IsUnspecified() || address.Addr().IsMulticast() {
			return fmt.Errorf("invalid address %s of a device", address)
		}
		if address.Addr().Is6() && o.MTU != 0 && o.MTU < MinMTUIPv6 {
			return fmt.Errorf("address %s: IPv6 needs an MTU of at least %d bytes, not %d", address, MinMTUIPv6, o.MTU)
		}
	}
	return nil
}

// CheckName returns an error unless the kernel accepts name for a device (dev_valid_name).
func CheckName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) >= unix.IFNAMSIZ ||
		strings.ContainsAny(name, "/:% \t\n\v\f\r\x00") {
		return fmt.Errorf("invalid device name %q: want 1 to %d bytes without space, /, : and %%", name, unix.IFNAMSIZ-1)
	}
	return nil
}

// Open creates a device in ns, or opens the existing persistent device of that name, and sets it up. A created device
// is deleted, with its addresses and routes, when it is closed or when the process ends. A persistent device keeps its
// settings. An open device keeps its namespace alive. The error names the device.
func Open(ns *netns.Namespace, options Options) (_ *Device, err error) {
	if err := options.Check(); err != nil {
		return nil, fmt.Errorf("open %s device: %w", options.Kind, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open %s device %q in network namespace %q: %w", options.Kind, options.Name, ns.Name(), err)
		}
	}()
	fd := -1
	err = ns.Do(func() (err error) { // the device belongs to the namespace where the file is opened
		fd, err = attach(options)
		return err
	})
	if err != nil {
		return nil, err
	}
	// The library owns the descriptor from here on and enables offloads. If it fails, the finalizer of its file closes
	// the descriptor.
	library, name, err := wireguard.CreateUnmonitoredTUNFromFD(fd)
	if err != nil {
		return nil, err
	}
	config := rtnl.DeviceConfig{Up: true, MTU: options.MTU, Addresses: options.Addresses}
	err = rtnl.In(ns).Configure(name, config)
	var described rtnl.Device
	if err == nil {
		described, err = rtnl.In(ns).Device(name)
	}
	if err != nil {
		return nil, errors.Join(err, library.Close())
	}
	return &Device{
		library: library, file: library.File(), name: name, namespace: ns.Name(),
		kind: options.Kind, offload: options.Offload, mtu: described.MTU,
	}, nil
}

// attach opens the clone file and attaches it to the device, on a thread in the device's namespace.
func attach(options Options) (fd int, err error) {
	ifr, err := unix.NewIfreq(options.Name)
	if err != nil {
		return -1, err
	}
	flags := map[Kind]uint16{TUN: unix.IFF_TUN, TAP: unix.IFF_TAP}[options.Kind] | unix.IFF_NO_PI
	if options.Offload {
		flags |= unix.IFF_VNET_HDR
	}
	ifr.SetUint16(flags)
	if fd, err = unix.Open(clonePath, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("open %s: %w", clonePath, err)
	}
	switch err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); {
	case errors.Is(err, unix.EBUSY):
		err = fmt.Errorf("in use by another program: %w", err)
	case errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("the existing device of that name is not a %s device with one queue: %w", options.Kind, err)
	case err == nil: // a persistent device keeps the offloads of the previous program
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0)
	}
	if err == nil && options.Offload {
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, headerSize)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

const (
	headerSize = 10      // the size of struct virtio_net_hdr in bytes (linux/virtio_net.h)
	packetSize = 1 << 16 // holds the largest packet
	minMSS     = 128     // bounds the size of a batch at a tiny MTU
	maxHeaders = 100     // the maximum size of the headers of a TCP segment in practice
)

// batch is a list of packets that are read or written together.
type batch struct {
	buffers [][]byte // each has room for a header before its packet
	lengths []int    // of the packets
}

func (d *Device) newBatch() *batch {
	count := d.library.BatchSize()
	if d.offload {
		count = max(count, packetSize/max(d.mtu-maxHeaders, minMSS)+1)
	}
	b := &batch{buffers: make([][]byte, count), lengths: make([]int, 0, count)}
	for i := range b.buffers {
		b.buffers[i] = make([]byte, headerSize+packetSize) // the kernel provides only the pages in use
	}
	return b
}

func (b *batch) packet(i int) []byte { return b.buffers[i][headerSize:][:b.lengths[i]] }

// add copies a packet into the batch. It returns false if the batch is full or the packet larger than 64 KiB.
func (b *batch) add(packet []byte) bool {
	if len(b.lengths) == cap(b.lengths) || len(packet) > packetSize {
		return false
	}
	copy(b.buffers[len(b.lengths)][headerSize:], packet)
	b.lengths = append(b.lengths, len(packet))
	return true
}

func (b *batch) bytes() (total int) {
	for _, length := range b.lengths {
		total += length
	}
	return total
}

// Each calls fn with each packet that the kernel sends through the device. The packet is valid until fn returns. Each
// returns nil when ctx ends, or an error when fn returns one or the device is deleted. TAP devices with offload are not
// supported, because the library does not segment frames.
func (d *Device) Each(ctx context.Context, fn func(packet []byte) error) error {
	if d.kind == TAP && d.offload {
		return fmt.Errorf("%s: frames with offload can be switched, but not read one by one", d)
	}
	b := d.newBatch()
	return until(ctx, []*Device{d}, func() error {
		for {
			n, err := d.library.Read(b.buffers, b.lengths[:cap(b.lengths)], headerSize)
			b.lengths = b.lengths[:max(n, 0)]
			d.read.add(len(b.lengths), b.bytes())
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			err = d.fatal(err)
			for i := 0; i < len(b.lengths) && err == nil; i++ {
				err = fn(b.packet(i))
			}
			if err != nil {
				return err
			}
		}
	})
}

// write passes a batch to the kernel and empties it. Packets that the kernel rejects count as dropped.
func (d *Device) write(b *batch) error {
	if len(b.lengths) == 0 {
		return nil
	}
	packets := make([][]byte, len(b.lengths)) // the library merges within these slices
	for i, length := range b.lengths {
		packets[i] = b.buffers[i][:headerSize+length]
	}
	_, err := d.library.Write(packets, headerSize)
	if err == nil {
		d.written.add(len(b.lengths), b.bytes())
	}
	b.lengths = b.lengths[:0]
	return d.fatal(err)
}
