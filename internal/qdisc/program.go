// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/cilium/ebpf"
)

const (
	// maxBurst is the longest time to fill a bucket: that of tbf, so that both methods let the same traffic pass.
	maxBurst = math.MaxUint32 * 64 * time.Nanosecond
	// A packet waits at most for the time that a full fq of the smallest frames takes at the rate, within these bounds.
	minHorizon, maxHorizon = 25 * time.Millisecond, 2 * time.Second
	smallestFrame          = 64 // bytes
)

// bucketOf returns the full bucket of a limit.
func bucketOf(limit Limit) edtBucket {
	rate, burst := limit.bytes()
	horizon := timeOf(fqPackets*smallestFrame, rate)
	return edtBucket{
		Rate: rate, Burst: uint64(min(timeOf(burst, rate), maxBurst)),
		Horizon: uint64(min(max(horizon, minHorizon), maxHorizon)),
	}
}

// timeOf is the time that a number of bytes takes at a rate in bytes per second.
func timeOf(bytes, rate uint64) time.Duration {
	return time.Duration(min(math.Ceil(float64(bytes)/float64(rate)*float64(time.Second)), float64(time.Hour)))
}

// loaded is a program and its table of one bucket.
type loaded struct {
	Program *ebpf.Program
	Buckets *ebpf.Map
}

// Close leaves a program that is attached, and its table.
func (l loaded) Close() error { return errors.Join(l.Program.Close(), l.Buckets.Close()) }

// load loads one of the programs with a bucket of its own.
func load(program string, bucket edtBucket) (loaded, error) {
	spec, err := loadEdt()
	if err != nil {
		return loaded{}, fmt.Errorf("read embedded object: %w", err)
	}
	spec.Maps[edtMapBuckets].Contents = []ebpf.MapKV{{Key: uint32(0), Value: bucket}}
	spec.Programs = map[string]*ebpf.ProgramSpec{program: spec.Programs[program]}
	collection, err := ebpf.NewCollection(spec)
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return loaded{}, fmt.Errorf("load program: %w", err)
	}
	return loaded{collection.Programs[program], collection.Maps[edtMapBuckets]}, nil
}

// heldTo returns the bucket of a loaded program, or nil if the program is gone or not ours: that of the name.
func heldTo(id uint32, name string) (*edtBucket, error) {
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
	// The kernel keeps the names of programs and maps, not their owner.
	maps, _ := info.MapIDs()
	if info.Name != name || len(maps) != 1 {
		return nil, nil
	}
	m, err := ebpf.NewMapFromID(maps[0])
	if err != nil {
		return nil, fmt.Errorf("open table of program %d: %w", id, err)
	}
	defer func() { _ = m.Close() }()
	if info, err := m.Info(); err != nil || info.Name != edtMapBuckets {
		return nil, err
	}
	var bucket edtBucket
	if err := m.Lookup(uint32(0), &bucket); err != nil {
		return nil, fmt.Errorf("read table of program %d: %w", id, err)
	}
	return &bucket, nil
}
