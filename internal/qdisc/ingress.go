// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// ingressPriority and ingressHandle identify our filter on ingress, which runs first among filters.
const (
	ingressPriority = 1
	ingressHandle   = paceMajor
)

// SetIngress runs a program (of type sched_cls, by its descriptor) on packets that a device receives from its link,
// behind tcx programs and before other filters. It replaces an earlier program of SetIngress: each packet sees one of
// the two. It ends with the device. Unlike tcx, it waits for no RCU grace period, neither here nor when the device is
// deleted. Errors: fs.ErrNotExist if the device is missing; errors.ErrUnsupported if the kernel lacks clsact or
// cls_bpf, or another's filter is in the way.
func SetIngress(n *netns.Namespace, index, program int) error {
	return onIndex(n, "attach an ingress program to", index, func(handle *netlink.Handle, link netlink.Link) error {
		if err := handle.QdiscAdd(clsact(link)); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		err := handle.FilterReplace(ourFilter(link, netlink.HANDLE_MIN_INGRESS, program))
		if err != nil {
			err = errors.Join(err, removeIdle(handle, link))
		}
		return err
	})
}

// Ingress returns the id of the program of SetIngress, 0 if there is none, or no device with the index.
func Ingress(n *netns.Namespace, index int) (program uint32, err error) {
	err = onIndex(n, "read the ingress program of", index, func(handle *netlink.Handle, link netlink.Link) error {
		filters, err := filtersOf(handle, link, netlink.HANDLE_MIN_INGRESS)
		for _, filter := range filters {
			bpf, ok := filter.(*netlink.BpfFilter)
			if ok && bpf.Priority == ingressPriority && bpf.Handle == ingressHandle && bpf.DirectAction {
				program = uint32(bpf.Id)
			}
		}
		if errors.Is(err, unix.EINVAL) { // no clsact
			err = nil
		}
		return err
	})
	return program, err
}

// DeleteIngress reverses SetIngress. It succeeds if the program or the device is missing.
func DeleteIngress(n *netns.Namespace, index int) error {
	err := onIndex(n, "remove the ingress program of", index, func(handle *netlink.Handle, link netlink.Link) error {
		if err := handle.FilterDel(ourFilter(link, netlink.HANDLE_MIN_INGRESS, -1)); err != nil {
			return gone(err)
		}
		return removeIdle(handle, link)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func onIndex(n *netns.Namespace, try string, index int, do func(*netlink.Handle, netlink.Link) error) error {
	handle, err := rtnl.In(n).Handle()
	if err == nil {
		defer handle.Close()
		err = do(handle, &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}})
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENODEV):
		err = errors.Join(fs.ErrNotExist, err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		err = errors.Join(errors.ErrUnsupported, err)
	}
	return fmt.Errorf("%s interface %d in %q: %w", try, index, n.Name(), err)
}
