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
	out    io.Writer
	kind   Kind
	start  time.Time
	failed chan error // the first error of out
}

// NewPrinter returns a printer for the packets of devices of a kind.
func NewPrinter(out io.Writer, kind Kind) *Printer {
	return &Printer{out: out, kind: kind, start: time.Now(), failed: make(chan error, 1)}
}

// Packet prints a packet on one line, in one write. It is a [Watch]; Wait returns its errors.
func (p *Printer) Packet(direction Direction, packet []byte) {
	format := FormatFrame
	if p.kind == TUN {
		format = func(packet []byte) string { return Decode(packet).String() }
	}
	_, err := fmt.Fprintf(p.out, "%.6f %s %s\n", time.Since(p.start).Seconds(), direction, format(packet))
	if err != nil {
		select {
		case p.failed <- err:
		default:
		}
	}
}

// Wait waits until ctx ends, which is no error, or until a packet cannot be printed.
func (p *Printer) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.failed:
		return err
	}
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
	type count struct{ packets, bytes uint64 }
	read := func() (counts []count) {
		for _, f := range flows {
			counts = append(counts, count{f.count.packets.Load(), f.count.bytes.Load()})
		}
		return counts
	}
	last, lastTime := read(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		counts, now := read(), time.Now()
		seconds := now.Sub(lastTime).Seconds()
		var parts []string
		for i, c := range counts {
			parts = append(parts, fmt.Sprintf("%s %.0f packets/s %.3f Mbit/s", flows[i].label,
				float64(c.packets-last[i].packets)/seconds, float64(c.bytes-last[i].bytes)*8/seconds/1e6))
		}
		if _, err := fmt.Fprintf(p.out, "%.1f %s\n", now.Sub(p.start).Seconds(), strings.Join(parts, ", ")); err != nil {
			return err
		}
		last, lastTime = counts, now
	}
}
