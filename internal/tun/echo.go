// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// Direction is which way a packet goes.
type Direction int

// The directions.
const (
	In  Direction = iota // from the kernel to this program
	Out                  // from this program to the kernel
)

// String is "in" or "out".
func (d Direction) String() string {
	if d == Out {
		return "out"
	}
	return "in"
}

// Watch is told of packets that went through a device. It may be called by
// several goroutines at once, and must not keep or change the packet.
type Watch func(direction Direction, packet []byte)

// Echo answers whatever is routed to a TUN device until ctx ends, which is no
// error: ICMP and ICMPv6 echo requests, UDP datagrams to any port, which go back
// with the payload that they have, and TCP connections to any port, which get
// back what they send until they close. It does so for every destination address
// but multicast and broadcast ones. Each packet is shown to watch, unless that is
// nil. It returns when all connections are closed.
func Echo(ctx context.Context, d *Device, watch Watch) error {
	if d.kind != TUN {
		return fmt.Errorf("%s: only a TUN device's packets can be answered", d)
	}
	if watch == nil {
		watch = func(Direction, []byte) {}
	}
	tcp, err := newTCPEcho(d.mtu)
	if err != nil {
		return fmt.Errorf("%s: %w", d, err)
	}
	defer tcp.close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return tcp.send(ctx, d, watch) })
	group.Go(func() error {
		answers := d.NewBatch()
		return d.Each(ctx, func(batch *Batch) error {
			for i := range batch.Len() {
				packet := batch.Packet(i)
				watch(In, packet)
				if answer(packet) {
					watch(Out, packet)
					answers.Add(packet)
					continue
				}
				tcp.receive(packet)
			}
			return d.Write(answers)
		})
	})
	return group.Wait()
}
