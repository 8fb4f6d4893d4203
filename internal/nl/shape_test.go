// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"errors"
	"testing"
	"time"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestShape sends more than a rate allows for at once, which takes at least so
// long.
func TestShape(t *testing.T) {
	a, b := routedPair(t)
	if err := a.Shape("left", nl.Shape{Rate: 40_000_000}); err != nil {
		t.Fatal(err)
	}
	server := testkit.Echo(t, b, "tcp", "10.0.0.2:0")
	began := time.Now()
	if _, err := testkit.RoundTrip(t, a, "tcp", server.String(), make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if took, least := time.Since(began), (1<<20-128<<10)*8*time.Second/40_000_000; took < least {
		t.Errorf("a mebibyte took %v, at least %v are needed", took, least)
	}
	if err := a.Shape("none", nl.Shape{Rate: 1e6}); err == nil {
		t.Error("a device that is not there was shaped")
	}
}

// TestShapeDelay is about netem, or the error where there is none.
func TestShapeDelay(t *testing.T) {
	a, _ := routedPair(t)
	err := a.Shape("left", nl.Shape{Rate: 1e9, Delay: 10 * time.Millisecond})
	if lacks := a.TryQdisc("netem"); errors.Is(lacks, errors.ErrUnsupported) != errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error %v, but netem: %v", err, lacks)
	}
	testkit.RequireMode(t, err)
	began := time.Now()
	if err := testkit.Ping(a, underlay("10.0.0.2/24").Addr(), 8); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 10*time.Millisecond {
		t.Errorf("an answer after %v", took)
	}
}
