// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"mustang/internal/tun"
)

// tunPrinter prints packets or rates.
type tunPrinter struct {
	out    io.Writer
	frames bool // Ethernet frames, not IP packets
	start  time.Time
	failed chan error // the first error of out
}

func newTUNPrinter(out io.Writer, frames bool) *tunPrinter {
	return &tunPrinter{out: out, frames: frames, start: time.Now(), failed: make(chan error, 1)}
}

// packet prints a line. It is for several goroutines at once: a line is one write.
func (p *tunPrinter) packet(direction tun.Direction, packet []byte) {
	var decoded fmt.Stringer = tun.Decode(packet)
	if p.frames {
		decoded = tun.DecodeFrame(packet)
	}
	_, err := fmt.Fprintf(p.out, "%.6f %s %s\n", time.Since(p.start).Seconds(), direction, decoded)
	if err != nil {
		select {
		case p.failed <- err:
		default:
		}
	}
}

// wait returns when ctx ends, or why a packet could not be printed.
func (p *tunPrinter) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.failed:
		return err
	}
}

// rates prints a line per second until ctx ends: what came and went at the
// device, or what went each way between the two.
func (p *tunPrinter) rates(ctx context.Context, specs []tunSpec, devices []*tun.Device) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	before, last := tunCounters(devices), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		after, now := tunCounters(devices), time.Now()
		var parts []string
		for i := range after {
			label, there := "in", "out"
			if len(devices) == 2 {
				label, there = specs[i].given+" > "+specs[1-i].given, ""
			}
			parts = append(parts, rate(label, now.Sub(last), after[i].ReadPackets-before[i].ReadPackets, after[i].ReadBytes-before[i].ReadBytes))
			if there != "" {
				parts = append(parts, rate(there, now.Sub(last), after[i].WrittenPackets-before[i].WrittenPackets, after[i].WrittenBytes-before[i].WrittenBytes))
			}
		}
		if _, err := fmt.Fprintf(p.out, "%.1f %s\n", now.Sub(p.start).Seconds(), strings.Join(parts, ", ")); err != nil {
			return err
		}
		before, last = after, now
	}
}

func tunCounters(devices []*tun.Device) (all []tun.Counters) {
	for _, device := range devices {
		all = append(all, device.Counters())
	}
	return all
}

// rate is what went one way within a time.
//
//revive:disable-next-line:argument-limit // two counts over a time, and their name
func rate(label string, elapsed time.Duration, packets, bytes uint64) string {
	seconds := elapsed.Seconds()
	return fmt.Sprintf("%s %.0f packets/s %.3f Mbit/s", label, float64(packets)/seconds, float64(bytes)*8/seconds/1e6)
}
