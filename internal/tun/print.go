// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// Printer prints packets, or rates, with the seconds since it was created.
type Printer struct {
	out   io.Writer
	kind  Kind
	start time.Time
}

// NewPrinter returns a printer for the packets of devices of a kind.
func NewPrinter(out io.Writer, kind Kind) *Printer { return &Printer{out, kind, time.Now()} }

// Packet prints a packet on one line, in one write. It is a [Watch].
func (p *Printer) Packet(direction Direction, packet []byte) error {
	format := FormatFrame
	if p.kind == TUN {
		format = FormatPacket
	}
	_, err := fmt.Fprintf(p.out, "%.6f %s %s\n", time.Since(p.start).Seconds(), direction, format(packet))
	return err
}

// Flow is a direction of traffic with its counters.
type Flow struct {
	label string
	count *flowCount
}

// Flows returns the two directions of a device, in and out.
func (d *Device) Flows() []Flow { return []Flow{d.ReadFlow("in"), {"out", &d.written}} }

// ReadFlow returns the direction from the kernel with a label.
func (d *Device) ReadFlow(label string) Flow { return Flow{label, &d.read} }

// Rates prints a line with the rate of each flow every second until ctx ends.
func (p *Printer) Rates(ctx context.Context, flows []Flow) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last, lastTime := make([][2]uint64, len(flows)), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := time.Now()
		seconds := now.Sub(lastTime).Seconds()
		var parts []string
		for i, f := range flows {
			packets, bytes := f.count.packets.Load(), f.count.bytes.Load()
			parts = append(parts, fmt.Sprintf("%s %.0f packets/s %.3f Mbit/s", f.label,
				float64(packets-last[i][0])/seconds, float64(bytes-last[i][1])*8/seconds/1e6))
			last[i] = [2]uint64{packets, bytes}
		}
		if _, err := fmt.Fprintf(p.out, "%.1f %s\n", now.Sub(p.start).Seconds(), strings.Join(parts, ", ")); err != nil {
			return err
		}
		lastTime = now
	}
}
