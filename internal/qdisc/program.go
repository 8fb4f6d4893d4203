// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

// The object contains no path of the build machine, so that it is reproducible.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../..=." edt ../../bpf/edt.bpf.c -- -I../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

func (b edtBucket) same(limit edtBucket) bool {
	return b.Rate == limit.Rate && b.Burst == limit.Burst && b.Horizon == limit.Horizon
}

type loaded struct {
	Program *ebpf.Program
	Buckets *ebpf.Map
}

// Close leaves a program that is attached, and its table.
func (l loaded) Close() error { return errors.Join(l.Program.Close(), l.Buckets.Close()) }

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

// heldTo returns the bucket of a loaded program, or nil if the program is gone or does not have our name.
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

// paceMajor, "mp", is the handle of our fq and the priority of our filter: the kernel chooses later priorities.
const paceMajor = 0x6d70

// ingressPriority and ingressHandle identify our filter on ingress, which runs first among filters.
const (
	ingressPriority = 1
	ingressHandle   = paceMajor
)

func clsact(link netlink.Link) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
}

// ourFilter is our filter of a device's HANDLE_MIN_INGRESS or HANDLE_MIN_EGRESS, for a program by its descriptor.
func ourFilter(link netlink.Link, parent uint32, program int) *netlink.BpfFilter {
	attrs := netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: parent, Handle: 1, Priority: paceMajor,
		Protocol: unix.ETH_P_ALL}
	if parent == netlink.HANDLE_MIN_INGRESS {
		attrs.Handle, attrs.Priority = ingressHandle, ingressPriority
	}
	return &netlink.BpfFilter{FilterAttrs: attrs, Fd: program, Name: "mustang", DirectAction: true}
}

func filtersOf(handle *netlink.Handle, link netlink.Link, parent uint32) ([]netlink.Filter, error) {
	return rtnl.Dump(func() ([]netlink.Filter, error) { return handle.FilterList(link, parent) })
}

func removeIdle(handle *netlink.Handle, link netlink.Link) error {
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		if filters, err := filtersOf(handle, link, parent); err != nil || len(filters) > 0 {
			return err
		}
	}
	return gone(handle.QdiscDel(clsact(link)))
}

// gone ignores the errors of removing an object that does not exist. EINVAL means no clsact.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
