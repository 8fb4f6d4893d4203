// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"errors"
	"fmt"
	"os"
)

const (
	headerSize = 10      // the size of struct virtio_net_hdr in bytes (linux/virtio_net.h)
	packetSize = 1 << 16 // holds the largest packet
	minMSS     = 128     // bounds the size of a batch at a tiny MTU
	maxHeaders = 100     // the maximum size of the headers of a TCP segment in practice
)

// batch is a list of packets that are read or written together.
type batch struct {
	buffers [][]byte // each has room for a header before its packet
	lengths []int    // of the packets
}

func (d *Device) newBatch() *batch {
	count := d.library.BatchSize()
	if d.offload {
		count = max(count, packetSize/max(d.mtu-maxHeaders, minMSS)+1)
	}
	b := &batch{buffers: make([][]byte, count), lengths: make([]int, 0, count)}
	for i := range b.buffers {
		b.buffers[i] = make([]byte, headerSize+packetSize) // the kernel provides only the pages in use
	}
	return b
}

func (b *batch) packet(i int) []byte { return b.buffers[i][headerSize:][:b.lengths[i]] }

// add copies a packet into the batch. It returns false if the batch is full or the packet larger than 64 KiB.
func (b *batch) add(packet []byte) bool {
	if len(b.lengths) == cap(b.lengths) || len(packet) > packetSize {
		return false
	}
	copy(b.buffers[len(b.lengths)][headerSize:], packet)
	b.lengths = append(b.lengths, len(packet))
	return true
}

func (b *batch) bytes() (total int) {
	for _, length := range b.lengths {
		total += length
	}
	return total
}

// Each calls fn with each packet that the kernel sends through the device. The packet is valid until fn returns. Each
// returns nil when ctx ends, or an error when fn returns one or the device is deleted. TAP devices with offload are not
// supported, because the library does not segment frames.
func (d *Device) Each(ctx context.Context, fn func(packet []byte) error) error {
	if d.kind == TAP && d.offload {
		return fmt.Errorf("%s: frames with offload can be switched, but not read one by one", d)
	}
	b := d.newBatch()
	return until(ctx, []*Device{d}, func() error {
		for {
			n, err := d.library.Read(b.buffers, b.lengths[:cap(b.lengths)], headerSize)
			b.lengths = b.lengths[:max(n, 0)]
			d.read.add(len(b.lengths), b.bytes())
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			err = d.fatal(err)
			for i := 0; i < len(b.lengths) && err == nil; i++ {
				err = fn(b.packet(i))
			}
			if err != nil {
				return err
			}
		}
	})
}

// write passes a batch to the kernel and empties it. Packets that the kernel rejects count as dropped.
func (d *Device) write(b *batch) error {
	if len(b.lengths) == 0 {
		return nil
	}
	packets := make([][]byte, len(b.lengths)) // the library merges within these slices
	for i, length := range b.lengths {
		packets[i] = b.buffers[i][:headerSize+length]
	}
	_, err := d.library.Write(packets, headerSize)
	if err == nil {
		d.written.add(len(b.lengths), b.bytes())
	}
	b.lengths = b.lengths[:0]
	return d.fatal(err)
}
