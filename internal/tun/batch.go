// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"
)

const (
	// headerSize is the size of struct virtio_net_hdr in bytes (linux/virtio_net.h).
	headerSize = 10
	// packetSize holds the largest packet.
	packetSize = 1 << 16
	// lowestMSS keeps a batch from growing without bounds at a tiny MTU.
	lowestMSS = 128
	// headers is what precedes the data of a TCP segment at most in practice.
	headers = 100
)

// Batch holds packets that are read or written together.
type Batch struct {
	buffers [][]byte // each with room for a header before its packet
	sizes   []int
	lengths []int // of the packets in it
	writing [][]byte
}

// NewBatch makes an empty batch that holds whatever one read of d returns.
func (d *Device) NewBatch() *Batch {
	count := d.library.BatchSize()
	if d.offload {
		count = max(count, packetSize/max(d.mtu-headers, lowestMSS)+1)
	}
	b := &Batch{
		buffers: make([][]byte, count), sizes: make([]int, count),
		lengths: make([]int, 0, count), writing: make([][]byte, 0, count),
	}
	// One allocation: the kernel provides the pages that are used, and no more.
	storage := make([]byte, count*(headerSize+packetSize))
	for i := range b.buffers {
		b.buffers[i], storage = storage[:headerSize+packetSize:headerSize+packetSize], storage[headerSize+packetSize:]
	}
	return b
}

// Len is how many packets are in the batch.
func (b *Batch) Len() int { return len(b.lengths) }

// Packet is one of the packets, which is overwritten when the batch is used
// again. It may be changed in place.
func (b *Batch) Packet(i int) []byte {
	return b.buffers[i][headerSize:][:b.lengths[i]]
}

// Add copies a packet into the batch. It returns false if the batch is full or
// the packet is larger than any can be.
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

// bytes is the size of all packets together.
func (b *Batch) bytes() (total int) {
	for _, length := range b.lengths {
		total += length
	}
	return total
}

// Each calls fn with batches of what the kernel sends out of the device, until
// ctx ends (which is no error), fn returns an error, or the device is gone. With
// offload, a TAP device can't be read so: nothing would cut its frames.
func (d *Device) Each(ctx context.Context, fn func(*Batch) error) error {
	if d.kind == TAP && d.offload {
		return fmt.Errorf("%s: with offload, frames can be switched but not read one by one", d)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		d.interrupt()
		return nil
	})
	group.Go(func() error { return d.each(fn) })
	err := group.Wait()
	d.resume()
	return err
}

func (d *Device) each(fn func(*Batch) error) error {
	batch := d.NewBatch()
	for {
		err := d.readBatch(batch)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(batch); err != nil {
			return err
		}
	}
}

// readBatch waits for packets and reads at least one, unless only such came that
// had to be dropped.
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

// Write hands a batch over to the kernel. With offload, packets of one stream go
// as one. Packets that the kernel refuses are counted as dropped and are no
// error. The batch is empty afterwards.
func (d *Device) Write(b *Batch) error {
	defer b.Reset()
	if b.Len() == 0 {
		return nil
	}
	// The library appends packets to one another within these slices.
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
