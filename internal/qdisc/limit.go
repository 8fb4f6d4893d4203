// SPDX-License-Identifier: Apache-2.0

// Package qdisc limits the rates at which devices send and receive, and emulates slow networks.
//
// With queue fq a limit is an eBPF program that sets a departure time for each packet (EDT). Without fq it is a token
// bucket filter (tbf). Either way one limit covers all that a device sends and ends with the device: nothing is pinned,
// and no process has to run. A limit of what a device receives drops, and queues nothing.
package qdisc

import (
	"errors"
	"fmt"

	"mustang/internal/netns"
)

// SetLimit limits the rate at which a device sends, or removes the limit if the rate is 0. Excess packets queue, and
// are dropped if they would wait too long: with EDT after the time that 4 MiB take at the rate, at least 25 ms and at
// most 2 s; with tbf after 25 ms. A limit that is in place already stays, whichever method enforces it.
//
// The limit replaces the root qdisc of the device. Removing it removes only our own. After an error the device may have
// no limit. The error matches fs.ErrNotExist if the device does not exist, and errors.ErrUnsupported if the kernel has
// neither method.
func SetLimit(ns *netns.Namespace, device string, limit Limit) error {
	return setLimit(byDepartures, ns, device, limit)
}

// method enforces a limit. Its error matches errors.ErrUnsupported if the kernel lacks it.
type method func(ns *netns.Namespace, device string, limit Limit) error

// setLimit is SetLimit with the method to try before tbf.
func setLimit(first method, ns *netns.Namespace, device string, limit Limit) error {
	if says, err := Deviation(ns, device, limit); err != nil || says == "" {
		return err
	}
	var lacks error
	if limit.Rate > 0 {
		if lacks = first(ns, device, limit); !errors.Is(lacks, errors.ErrUnsupported) {
			return lacks
		}
	}
	if err := detachEDT(ns, device); err != nil {
		return err
	}
	err := SetTBF(ns, device, limit)
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%w; departure times: %w", err, lacks)
	}
	return err
}

// byDepartures enforces a limit by departure times.
func byDepartures(ns *netns.Namespace, device string, limit Limit) (err error) {
	if err := attachFQ(ns, device, limit); err != nil {
		return err // nothing has changed
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, detachEDT(ns, device))
		}
	}()
	objects, err := load(edtProgEdt, bucketOf(limit))
	if err != nil {
		return fmt.Errorf("limit what device %q in %q sends: %w", device, ns.Name(), err)
	}
	defer func() { err = errors.Join(err, objects.Close()) }()
	return attachEDT(ns, device, objects.Program.FD())
}

// Deviation describes how a device's limit differs from limit, whichever method enforces it; it is empty if they agree.
// The error matches fs.ErrNotExist if the device does not exist.
func Deviation(ns *netns.Namespace, device string, limit Limit) (string, error) {
	bucket, err := deviationTBF(ns, device, Limit{})
	if err != nil {
		return "", err
	}
	if bucket != "" {
		return deviationTBF(ns, device, limit)
	}
	pacing, err := readPacing(ns, device)
	if err != nil {
		return "", err
	}
	have, err := heldTo(pacing.Program, edtProgEdt)
	if err != nil {
		return "", fmt.Errorf("read the limit of device %q in %q: %w", device, ns.Name(), err)
	}
	return deviation(pacing, have, limit), nil
}

// deviation compares the EDT limit of a device with limit. have is the program's bucket, or nil if the program is not
// ours.
func deviation(pacing pacing, have *edtBucket, limit Limit) string {
	if limit.Rate == 0 {
		switch {
		case have != nil:
			return fmt.Sprintf("is limited to %d bit/s, not unlimited", have.Rate*8)
		case pacing.Queue || pacing.Program != 0:
			return "has parts of a limit, not unlimited"
		}
		return ""
	}
	unlimited := fmt.Sprintf("is not limited to %d bit/s", limit.Rate)
	want := bucketOf(limit)
	switch {
	case have == nil && !pacing.Queue:
		return unlimited
	case have == nil:
		return unlimited + ": no program sets departure times"
	case !pacing.Queue:
		return unlimited + ": fq is missing"
	case have.Rate != want.Rate:
		return fmt.Sprintf("is limited to %d bit/s, not %d", have.Rate*8, want.Rate*8)
	case have.Burst != want.Burst || have.Horizon != want.Horizon:
		return "has another burst"
	}
	return ""
}
