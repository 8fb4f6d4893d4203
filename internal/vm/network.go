// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Network is a guest's network device, eth0, which is connected to a TAP device on this
// machine. [Init] needs a function to set it up.
type Network struct {
	TAP       *os.File       `json:"-"` // the open TAP device, see [OpenTAP]. Run closes it.
	MAC       string         // the guest's MAC address, in lower case with colons
	MTU       int            // in bytes; 0 keeps the kernel's default (1500)
	Addresses []netip.Prefix // the guest's, with their prefix lengths
	Gateways  []netip.Addr   // the next hops of the default routes, at most one per family, in any prefix
	NoOffload bool           // makes the guest complete its packets: checksums and segmentation
}

const (
	tunFile          = "/dev/net/tun"
	vhostFile        = "/dev/vhost-net"
	vhostGetFeatures = 0x8008af00 // the ioctl VHOST_GET_FEATURES of linux/vhost.h
)

// OpenTAP opens an existing TAP device, or creates one that is deleted with the file, in the network namespace of the
// calling thread. The error matches unix.EBUSY if another program has it open.
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
	// From these flags QEMU detects that packets have a virtio header.
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	fd, err := unix.Open(tunFile, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: tunFile, Err: err}
	}
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	if err == nil {
		// resets the offloads of the previous program; QEMU negotiates new ones
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openVhost opens the kernel's forwarder between a guest and a TAP device, which needs KVM. It returns nil without one.
func openVhost() *os.File {
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

func (m *machine) networkDevice(p *exec.Cmd) []string {
	backend, device := "tap,id=network,fd="+pass(p, m.Network.TAP), "virtio-net-pci,netdev=network,romfile=,mac="+
		m.Network.MAC
	if m.Acceleration == KVM {
		if vhost := openVhost(); vhost != nil {
			backend += ",vhost=on,vhostfd=" + pass(p, vhost)
		}
	}
	if m.Network.NoOffload {
		device += ",csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off" +
			",guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"
	}
	return []string{"-netdev", backend, "-device", device}
}

// NetworkDevice is the name of a guest's network device.
const NetworkDevice = "eth0"

const networkTimeout = 20 * time.Second

func (s *system) network() error {
	n := s.config.Network
	if n == nil {
		return nil
	}
	if s.configure == nil {
		return errors.New("the program lacks a function to set up a network device")
	}
	if err := awaitDevice("address", n.MAC); err != nil {
		return err
	}
	if err := s.configure(*n); err != nil {
		return err
	}
	return awaitDevice("operstate", "up")
}

// awaitDevice waits until a property of the device has a value. The device appears some milliseconds after its driver.
func awaitDevice(property, want string) error {
	file := filepath.Join("/sys/class/net", NetworkDevice, property)
	for deadline := time.Now().Add(networkTimeout); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(file)
		have := strings.TrimSpace(string(text))
		if err == nil && have == want {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("network device %s: %s is %q after %v, not %s", NetworkDevice, property, have,
				networkTimeout, want), err)
		}
	}
}
