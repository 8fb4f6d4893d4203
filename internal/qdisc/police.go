// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// A busy machine's queue of the same limit sends one packet late and the next on time.
const policeSlack = 100 * time.Millisecond

// SetPolice drops packets that a device receives from its link above a limit; rate 0 removes the limit. Packets sent
// under [SetLimit] with the same limit pass. For a netkit device the limit is where its peer sends; the peer's
// namespace can't remove it. A limit that is in place already stays.
//
// The limit comes before other programs, is not pinned, and ends with the device. The error matches fs.ErrNotExist if
// the device does not exist, and errors.ErrUnsupported if the kernel lacks programs of that kind (Linux before 6.6).
func SetPolice(ns *netns.Namespace, device string, limit Limit) error {
	return onPolice(ns, "limit what is received by", device, func(at policePoint) error {
		if limit.Rate > 0 {
			if err := limit.check(at.link); err != nil {
				return err
			}
		}
		have, err := at.find()
		if err != nil || deviationPolice(have, limit) == "" {
			return err
		}
		if limit.Rate > 0 {
			if err := at.attach(limit); err != nil {
				return err
			}
		}
		for _, old := range have { // after the new one: no packet misses a limit
			if err := at.detach(old.id); err != nil {
				return err
			}
		}
		return nil
	})
}

// PoliceDeviation describes how the limit of a device's received packets differs from limit; empty if they agree. The
// error matches fs.ErrNotExist if the device does not exist.
func PoliceDeviation(ns *netns.Namespace, device string, limit Limit) (says string, err error) {
	err = onPolice(ns, "read the limit of what is received by", device, func(at policePoint) error {
		have, err := at.find()
		says = deviationPolice(have, limit)
		return err
	})
	return says, err
}

type policer struct {
	id     ebpf.ProgramID
	bucket edtBucket
}

func deviationPolice(have []policer, limit Limit) string {
	switch {
	case limit.Rate == 0 && len(have) > 0:
		return "drops what it receives above a limit, not unlimited"
	case limit.Rate > 0 && (len(have) != 1 || !have[0].bucket.same(policeBucket(limit))):
		return fmt.Sprintf("does not drop what it receives above %d bit/s with a burst of %d", limit.Rate, limit.Burst)
	}
	return ""
}

func policeBucket(limit Limit) edtBucket {
	bucket := bucketOf(limit)
	bucket.Horizon = uint64(policeSlack)
	return bucket
}

// policePoint is where the programs of a device's link attach, in the calling thread's namespace.
type policePoint struct {
	link netlink.Link
	hook ebpf.AttachType
}

func onPolice(n *netns.Namespace, try, device string, do func(policePoint) error) error {
	return onDevice(n, try, device, func(_ *netlink.Handle, link netlink.Link) error {
		at := policePoint{link, ebpf.AttachTCXIngress}
		if _, ok := link.(*netlink.Netkit); ok {
			at.hook = ebpf.AttachNetkitPeer
		}
		err := n.Do(func() error { return do(at) })
		if errors.Is(err, ebpf.ErrNotSupported) {
			return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
		}
		return err
	})
}

func (at policePoint) find() (found []policer, err error) {
	attached, err := link.QueryPrograms(link.QueryOptions{Target: at.link.Attrs().Index, Attach: at.hook})
	if err != nil {
		return nil, fmt.Errorf("list programs: %w", err)
	}
	for _, p := range attached.Programs {
		bucket, err := heldTo(uint32(p.ID), edtProgPolice)
		if err != nil {
			return nil, err
		}
		if bucket != nil {
			found = append(found, policer{p.ID, *bucket})
		}
	}
	return found, nil
}

func (at policePoint) attach(limit Limit) (err error) {
	objects, err := load(edtProgPolice, policeBucket(limit))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, objects.Close()) }()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: at.link.Attrs().Index, Program: objects.Program, Attach: at.hook, Anchor: link.Head(),
	})
	if err != nil {
		return fmt.Errorf("attach program: %w", err)
	}
	return nil
}

func (at policePoint) detach(id ebpf.ProgramID) error {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Errorf("open program %d: %w", id, err)
	}
	defer func() { _ = p.Close() }()
	err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: at.link.Attrs().Index, Program: p, Attach: at.hook})
	if err != nil {
		return fmt.Errorf("detach program %d: %w", id, err)
	}
	return nil
}

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
