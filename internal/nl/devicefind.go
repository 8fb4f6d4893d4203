// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DeviceByIndex returns the device with that index in n, without its addresses:
// to ask for those costs more the more devices there are. The error matches
// fs.ErrNotExist if there is none.
func (n *Namespace) DeviceByIndex(index int) (Device, error) {
	handle, err := n.Netlink()
	if err != nil {
		return Device{}, err
	}
	defer handle.Close()
	link, err := handle.LinkByIndex(index)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Device{}, fmt.Errorf("device %d in network namespace %q: %w", index, n.Name(), err)
	}
	return newDevice(link), nil
}

// HasDevice reports whether n has a device of that name, or with it as an alternative
// name. It is the quickest way to ask (netdevice(7), SIOCGIFINDEX).
func (n *Namespace) HasDevice(name string) (bool, error) {
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = n.withSocket(func(fd int) error { return unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request) })
	}
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for device %q in network namespace %q: %w", name, n.Name(), err)
	}
	return true, nil
}

// DevicesOfKind returns the devices in n that are of the kind, like "macvlan",
// without their addresses. The kernel leaves the others out.
func (n *Namespace) DevicesOfKind(kind string) ([]Device, error) {
	messages, err := Dump(func() (messages [][]byte, err error) {
		request := vnl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		request.AddData(vnl.NewIfInfomsg(unix.AF_UNSPEC))
		info := vnl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(unix.IFLA_INFO_KIND, vnl.NonZeroTerminated(kind))
		request.AddData(info)
		// Outside a handle, a request opens a socket in the thread's namespace.
		err = n.Do(func() error {
			messages, err = request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
			return err
		})
		return messages, err
	})
	if err != nil {
		return nil, fmt.Errorf("list devices of kind %s in network namespace %q: %w", kind, n.Name(), err)
	}
	var devices []Device
	for _, message := range messages {
		link, err := netlink.LinkDeserialize(nil, message)
		if err != nil {
			return nil, fmt.Errorf("read a device in network namespace %q: %w", n.Name(), err)
		}
		// A kernel that does not know the kind sends all.
		if device := newDevice(link); device.Kind == kind {
			devices = append(devices, device)
		}
	}
	return devices, nil
}
