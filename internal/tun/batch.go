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

// Batch is a list of packets that are read or written together.
type Batch struct {
	buffers [][]byte // each has room for a header before its packet
	lengths []int    // of the packets
}

func (d *Device) newBatch() *Batch {
	count := d.library.BatchSize()
	if d.offload {
		count = max(count, packetSize/max(d.mtu-maxHeaders, minMSS)+1)
	}
	b := &Batch{buffers: make([][]byte, count), lengths: make([]int, 0, count)}
	for i := range b.buffers {
		b.buffers[i] = make([]byte, headerSize+packetSize) // the kernel provides only the pages in use
	}
	return b
}

// Len returns the number of packets.
func (b *Batch) Len() int { return len(b.lengths) }

// Packet returns a packet, which is valid until the batch is reused. The caller may change it in place.
func (b *Batch) Packet(i int) []byte { return b.buffers[i][headerSize:][:b.lengths[i]] }

// add copies a packet into the batch. It returns false if the batch is full or the packet larger than 64 KiB.
func (b *Batch) add(packet []byte) bool {
	if len(b.lengths) == cap(b.lengths) || len(packet) > packetSize {
		return false
	}
	copy(b.buffers[len(b.lengths)][headerSize:], packet)
	b.lengths = append(b.lengths, len(packet))
	return true
}

func (b *Batch) bytes() (total int) {
	for _, length := range b.lengths {
		total += length
	}
	return total
}

// Each calls fn with batches of packets that the kernel sends through the device. It returns nil when ctx ends, or
// an error when fn returns one or the device is deleted. TAP devices with offload are not supported, because the
// library does not segment frames.
func (d *Device) Each(ctx context.Context, fn func(*Batch) error) error {
	if d.kind == TAP && d.offload {
		return fmt.Errorf("%s: frames with offload can be switched, but not read one by one", d)
	}
	batch := d.newBatch()
	return until(ctx, []*Device{d}, func() error {
		for {
			n, err := d.library.Read(batch.buffers, batch.lengths[:cap(batch.lengths)], headerSize)
			batch.lengths = batch.lengths[:max(n, 0)]
			d.read.add(batch.Len(), batch.bytes())
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			if err = d.fatal(err); err == nil {
				err = fn(batch)
			}
			if err != nil {
				return err
			}
		}
	})
}

// write passes a batch to the kernel and empties it. Packets that the kernel rejects count as dropped.
func (d *Device) write(b *Batch) error {
	if b.Len() == 0 {
		return nil
	}
	packets := make([][]byte, b.Len()) // the library merges within these slices
	for i, length := range b.lengths {
		packets[i] = b.buffers[i][:headerSize+length]
	}
	_, err := d.library.Write(packets, headerSize)
	if err == nil {
		d.written.add(b.Len(), b.bytes())
	}
	b.lengths = b.lengths[:0]
	return d.fatal(err)
}
