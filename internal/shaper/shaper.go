// SPDX-License-Identifier: Apache-2.0

// Package shaper limits what devices send. Where the kernel has queue fq, an eBPF
// program says of each packet when it is due, and the queue lets none go before;
// elsewhere a token bucket filter (tbf) does both. Either way it is one limit for all
// that a device sends, and it ends with the device: nothing is pinned, nobody has to
// run.
package shaper

import (
	"errors"
	"fmt"

	"mustang/internal/nl"
)

// Limit limits what a device sends, or ends that limit if the rate is 0. What exceeds
// it waits and, if that would take too long, is dropped: by departure times after
// the time that 4 MiB take at the rate, but 25 ms at least and 2 s at most; by tbf
// after 25 ms. A limit that is there already stays as it is, whichever way it is kept.
//
// The limit takes the place of the device's root queueing discipline; to end one,
// only ours is removed. If setting it fails there may be none. The error matches
// fs.ErrNotExist if there is no such device, and errors.ErrUnsupported if the kernel
// has neither way.
func Limit(ns *nl.Namespace, device string, limit nl.RateLimit) error {
	return limitBy(byDepartures, ns, device, limit)
}

// way is how a limit is kept. Its error matches errors.ErrUnsupported if the kernel
// lacks what it takes.
type way func(ns *nl.Namespace, device string, limit nl.RateLimit) error

// limitBy is Limit with the way that is tried before the token bucket.
func limitBy(first way, ns *nl.Namespace, device string, limit nl.RateLimit) error {
	if says, err := Deviation(ns, device, limit); err != nil || says == "" {
		return err
	}
	var lacks error
	if limit.Rate > 0 {
		if lacks = first(ns, device, limit); !errors.Is(lacks, errors.ErrUnsupported) {
			return lacks
		}
	}
	if err := ns.Unpace(device); err != nil {
		return err
	}
	err := ns.LimitRate(device, limit)
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%w; nor can it be done by departure times: %w", err, lacks)
	}
	return err
}

// byDepartures limits by departure times.
func byDepartures(ns *nl.Namespace, device string, limit nl.RateLimit) (err error) {
	if err := ns.PaceQueue(device, limit); err != nil {
		return err // and all is as it was
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ns.Unpace(device))
		}
	}()
	objects, err := load(bucketOf(limit))
	if err != nil {
		return fmt.Errorf("limit what device %q in %q sends: %w", device, ns.Name(), err)
	}
	defer func() { err = errors.Join(err, objects.Close()) }()
	return ns.PaceProgram(device, objects.Departure.FD())
}

// Deviation says in what a device's limit is not as Limit leaves it, either way; or is
// empty. The error matches fs.ErrNotExist if there is no such device.
func Deviation(ns *nl.Namespace, device string, limit nl.RateLimit) (string, error) {
	bucket, err := ns.RateDeviation(device, nl.RateLimit{})
	if err != nil {
		return "", err
	}
	if bucket != "" {
		return ns.RateDeviation(device, limit)
	}
	pacing, err := ns.Pacing(device)
	if err != nil {
		return "", err
	}
	have, err := heldTo(pacing.Program)
	if err != nil {
		return "", fmt.Errorf("read the limit of device %q in %q: %w", device, ns.Name(), err)
	}
	return deviation(pacing, have, limit), nil
}

// deviation compares what paces a device with what is to. Have is the program's
// bucket, or nil if there is none of ours.
func deviation(pacing nl.Pacing, have *departureBucket, limit nl.RateLimit) string {
	if limit.Rate == 0 {
		switch {
		case have != nil:
			return fmt.Sprintf("is limited to %d bit/s, not unlimited", have.Rate*8)
		case pacing.Queue || pacing.Program != 0:
			return "has a part of a limit still, but is to be unlimited"
		}
		return ""
	}
	unlimited := fmt.Sprintf("is not limited to %d bit/s", limit.Rate)
	want := bucketOf(limit)
	switch {
	case have == nil && !pacing.Queue:
		return unlimited
	case have == nil:
		return unlimited + ": no program says when packets are due"
	case !pacing.Queue:
		return unlimited + ": no queue fq keeps packets until they are due"
	case have.Rate != want.Rate:
		return fmt.Sprintf("is limited to %d bit/s, not %d", have.Rate*8, want.Rate*8)
	case have.Burst != want.Burst || have.Horizon != want.Horizon:
		return "has another burst than it is to have"
	}
	return ""
}
