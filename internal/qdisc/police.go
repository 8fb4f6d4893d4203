// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
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
