// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits of what Emulate is for, and how messages write them.
const (
	minRate  = 1_000_000
	maxRate  = 400_000_000_000
	rates    = "1mbit to 400gbit"
	minDelay = time.Microsecond // the resolution of netem
	maxDelay = time.Second
)

// CheckEmulation returns an error if a rate, in bits per second, or a delay is out of range for [Emulate]; 0 means no limit.
func CheckEmulation(rate uint64, delay time.Duration) error {
	switch {
	case rate != 0 && (rate < minRate || rate > maxRate):
		return fmt.Errorf("rate %d bit/s: want %s, or 0", rate, rates)
	case delay != 0 && (delay < minDelay || delay > maxDelay):
		return fmt.Errorf("delay %v: want %v to %v, or 0", delay, minDelay, maxDelay)
	}
	return nil
}

// rateUnits are the units of rates as tc writes them, in bits per second. Units that
// end with another one come first.
var rateUnits = []struct {
	name string
	bits float64
}{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// ParseRate parses a rate for [Emulate], such as "10gbit" or "1.5mbit", and returns bits per second.
func ParseRate(text string) (uint64, error) {
	for _, unit := range rateUnits {
		number, ok := strings.CutSuffix(strings.ToLower(text), unit.name)
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(number, 64)
		if bits := value * unit.bits; err == nil && bits >= minRate && bits <= maxRate {
			return uint64(bits), nil
		}
		break
	}
	return 0, fmt.Errorf("invalid rate %q: want a number and gbit, mbit, kbit or bit, from %s", text, rates)
}
