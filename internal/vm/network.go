// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Network is a guest's network device, eth0, which is a TAP device on this
// machine. The guest's Init must be able to set it up, see [Init].
type Network struct {
	// TAP is the open TAP device, see [OpenTAP].
	TAP *os.File
	// MAC is the guest's address, in lower case with colons.
	MAC string
	// MTU is in bytes; 0 leaves what the kernel takes (1500).
	MTU int
	// Addresses are the guest's, with the length of their prefixes.
	Addresses []netip.Prefix
	// Gateways are the next hops of the default routes, at most one per family. They
	// are taken as directly reachable.
	Gateways []netip.Addr
	// NoOffload has the guest finish its packets: sum them, and cut them to the MTU.
	NoOffload bool
}

const (
	tunFile   = "/dev/net/tun"
	vhostFile = "/dev/vhost-net"
	// vhostGetFeatures is the ioctl VHOST_GET_FEATURES of linux/vhost.h.
	vhostGetFeatures = 0x8008af00
)

// OpenTAP opens a TAP device that is there, or makes one that goes with the file,
// in the network namespace of the calling thread. The error matches unix.EBUSY if
// a program has it open.
func OpenTAP(name string) (_ *os.File, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open TAP device %q: %w", name, err)
		}
	}()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	// QEMU reads from these flags that packets have a virtio header.
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	fd, err := unix.Open(tunFile, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: tunFile, Err: err}
	}
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	if err == nil {
		// what the program before us agreed on; QEMU agrees anew with the guest
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openVhost opens the kernel's own way between a guest and a TAP device; nil
// means that there is none. It needs KVM.
func (o Options) openVhost() *os.File {
	if o.Network == nil || o.Acceleration != KVM {
		return nil
	}
	file, err := os.OpenFile(vhostFile, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	if _, err := unix.IoctlGetInt(int(file.Fd()), vhostGetFeatures); err != nil {
		_ = file.Close()
		return nil
	}
	return file
}

// arguments are QEMU's.
func (n *Network) arguments(p *program, vhost *os.File) []string {
	backend := "tap,id=network,fd=" + p.pass(n.TAP)
	if vhost != nil {
		backend += ",vhost=on,vhostfd=" + p.pass(vhost)
	}
	device := "virtio-net-pci,netdev=network,romfile=,mac=" + n.MAC
	if n.NoOffload {
		device += ",csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off" +
			",guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"
	}
	return []string{"-netdev", backend, "-device", device}
}

// interior is what the guest is told of it.
func (n *Network) interior() *Interior {
	return &Interior{MAC: n.MAC, MTU: n.MTU, Addresses: n.Addresses, Gateways: n.Gateways}
}
