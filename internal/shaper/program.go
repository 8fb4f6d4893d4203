// SPDX-License-Identifier: Apache-2.0

package shaper

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/cilium/ebpf"

	"mustang/internal/nl"
)

const (
	// maxBurst is the longest time that filling a bucket may take: tbf's, so that both
	// ways let the same pass.
	maxBurst = math.MaxUint32 * 64 * time.Nanosecond
	// A packet may wait for as long as the smallest frames that the queue has room for
	// take at the rate, but not shorter than with tbf, and not for ever.
	minHorizon, maxHorizon = 25 * time.Millisecond, 2 * time.Second
	smallestFrame          = 64 // bytes
)

// bucketOf is the bucket of a limit, and full.
func bucketOf(limit nl.RateLimit) departureBucket {
	rate, burst := limit.Bytes()
	horizon := timeOf(nl.PacePackets*smallestFrame, rate)
	return departureBucket{
		Rate: rate, Burst: uint64(min(timeOf(burst, rate), maxBurst)),
		Horizon: uint64(min(max(horizon, minHorizon), maxHorizon)),
	}
}

// timeOf is how long so many bytes take at a rate, in bytes per second.
func timeOf(bytes, rate uint64) time.Duration {
	return time.Duration(min(math.Ceil(float64(bytes)/float64(rate)*float64(time.Second)), float64(time.Hour)))
}

// load makes a program with a bucket of its own.
func load(bucket departureBucket) (*departureObjects, error) {
	spec, err := loadDeparture()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	spec.Maps[departureMapBuckets].Contents = []ebpf.MapKV{{Key: uint32(0), Value: bucket}}
	var objects departureObjects
	err = spec.LoadAndAssign(&objects, nil)
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("load program: %w", err)
	}
	return &objects, nil
}

// heldTo returns the bucket of a program that is loaded; or nil if it is none of ours,
// or gone.
func heldTo(id uint32) (*departureBucket, error) {
	if id == 0 {
		return nil, nil
	}
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open program %d: %w", id, err)
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		return nil, fmt.Errorf("read program %d: %w", id, err)
	}
	// The kernel keeps the names, but not who made it.
	maps, _ := info.MapIDs()
	if info.Name != departureProgDeparture || len(maps) != 1 {
		return nil, nil
	}
	m, err := ebpf.NewMapFromID(maps[0])
	if err != nil {
		return nil, fmt.Errorf("open table of program %d: %w", id, err)
	}
	defer func() { _ = m.Close() }()
	if info, err := m.Info(); err != nil || info.Name != departureMapBuckets {
		return nil, err
	}
	var bucket departureBucket
	if err := m.Lookup(uint32(0), &bucket); err != nil {
		return nil, fmt.Errorf("read table of program %d: %w", id, err)
	}
	return &bucket, nil
}
