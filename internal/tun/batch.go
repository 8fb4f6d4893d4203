// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"errors"
	"fmt"
	"os"
)

const (
	// headerSize is the size of struct virtio_net_hdr in bytes (linux/virtio_net.h).
	headerSize = 10
	// packetSize holds the largest packet.
	packetSize = 1 << 16
	// minMSS bounds the size of a batch at a tiny MTU.
	minMSS = 128
	// headers is the maximum size of the headers of a TCP segment in practice.
	headers = 100
)

// Batch is a list of packets that are read or written together.
type Batch struct {
	buffers [][]byte // each has room for a header before its packet
	sizes   []int
	lengths []int // of the packets
	writing [][]byte
}

// NewBatch returns an empty batch with room for any read of d.
func (d *Device) NewBatch() *Batch {
	count := d.library.BatchSize()
	if d.offload {
		count = max(count, packetSize/max(d.mtu-headers, minMSS)+1)
	}
	b := &Batch{
		buffers: make([][]byte, count), sizes: make([]int, count),
		lengths: make([]int, 0, count), writing: make([][]byte, 0, count),
	}
	// One allocation: the kernel provides only the pages in use.
	storage := make([]byte, count*(headerSize+packetSize))
	for i := range b.buffers {
		b.buffers[i], storage = storage[:headerSize+packetSize:headerSize+packetSize], storage[headerSize+packetSize:]
	}
	return b
}

// Len returns the number of packets.
func (b *Batch) Len() int { return len(b.lengths) }

// Packet returns a packet, which is valid until the batch is reused. The caller may change it in place.
func (b *Batch) Packet(i int) []byte {
	return b.buffers[i][headerSize:][:b.lengths[i]]
}

// Add copies a packet into the batch. It returns false if the batch is full or the packet larger than 64 KiB.
func (b *Batch) Add(packet []byte) bool {
	if len(b.lengths) == cap(b.lengths) || len(packet) > packetSize {
		return false
	}
	copy(b.buffers[len(b.lengths)][headerSize:], packet)
	b.lengths = append(b.lengths, len(packet))
	return true
}

// Reset empties the batch.
func (b *Batch) Reset() { b.lengths = b.lengths[:0] }

// bytes returns the total size of the packets.
func (b *Batch) bytes() (total int) {
	for _, length := range b.lengths {
		total += length
	}
	return total
}

// Each calls fn with batches of packets that the kernel sends through the device, until
// ctx ends (which is no error), fn returns an error, or the device is deleted. TAP
// devices with offload are not supported, because the library does not segment frames.
func (d *Device) Each(ctx context.Context, fn func(*Batch) error) error {
	if d.kind == TAP && d.offload {
		return fmt.Errorf("%s: frames with offload can be switched, but not read one by one", d)
	}
	batch := d.NewBatch()
	return until(ctx, []*Device{d}, func() error {
		for {
			err := d.readBatch(batch)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			if err == nil {
				err = fn(batch)
			}
			if err != nil {
				return err
			}
		}
	})
}

// readBatch waits for packets and reads at least one, unless all were dropped.
func (d *Device) readBatch(b *Batch) error {
	b.Reset()
	n, err := d.library.Read(b.buffers, b.sizes, headerSize)
	b.lengths = append(b.lengths, b.sizes[:max(n, 0)]...)
	d.read.add(b.Len(), b.bytes())
	if err != nil {
		return d.fatal(err)
	}
	return nil
}

// Write passes a batch to the kernel. With offload it merges packets of a stream. Packets that the kernel rejects count
// as dropped and are no error. The batch is empty afterwards.
func (d *Device) Write(b *Batch) error {
	defer b.Reset()
	if b.Len() == 0 {
		return nil
	}
	// The library merges packets within these slices.
	b.writing = b.writing[:0]
	for i, length := range b.lengths {
		b.writing = append(b.writing, b.buffers[i][:headerSize+length])
	}
	_, err := d.library.Write(b.writing, headerSize)
	if err != nil {
		return d.fatal(err)
	}
	d.written.add(b.Len(), b.bytes())
	return nil
}
