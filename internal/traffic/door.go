// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"net/netip"
	"sync"
	"time"
)

// Bounds of those who have not shown yet that they know the token.
const (
	maxStrangers     = 32 // handshakes at once
	maxStrangersEach = 4  // of one address
	maxFailures      = 5  // of one address, within failureMemory
	failureMemory    = time.Minute
	maxRemembered    = 1024 // addresses
)

var (
	errFailures  = errors.New("too many failed tries, wait a minute")
	errStrangers = errors.New("too many connections at once")
)

// door bounds handshakes, by address: how many there are at once, and how many
// may fail in a while.
type door struct {
	mu        sync.Mutex
	strangers map[netip.Addr]int
	all       int
	failures  map[netip.Addr]failure
}

// failure is how often an address failed since a time.
type failure struct {
	times int
	since time.Time
}

func newDoor() *door {
	return &door{strangers: map[netip.Addr]int{}, failures: map[netip.Addr]failure{}}
}

// enter lets an address try, or says why not.
func (d *door) enter(from netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f, ok := d.failures[from]; ok && f.times >= maxFailures && time.Since(f.since) < failureMemory {
		return errFailures
	}
	if d.all >= maxStrangers || d.strangers[from] >= maxStrangersEach {
		return errStrangers
	}
	d.all++
	d.strangers[from]++
	return nil
}

// leave ends a try.
func (d *door) leave(from netip.Addr, failed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all--
	if d.strangers[from]--; d.strangers[from] == 0 {
		delete(d.strangers, from)
	}
	if !failed {
		delete(d.failures, from)
		return
	}
	f := d.failures[from]
	if f.times == 0 || time.Since(f.since) >= failureMemory {
		d.forget()
		f = failure{since: time.Now()}
	}
	f.times++
	d.failures[from] = f
}

// forget makes room for one more address: those go whose time is over, or else the
// oldest.
func (d *door) forget() {
	var oldest netip.Addr
	for addr, f := range d.failures {
		if time.Since(f.since) >= failureMemory {
			delete(d.failures, addr)
		} else if !oldest.IsValid() || f.since.Before(d.failures[oldest].since) {
			oldest = addr
		}
	}
	if len(d.failures) >= maxRemembered {
		delete(d.failures, oldest)
	}
}
