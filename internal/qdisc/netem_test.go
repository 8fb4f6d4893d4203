// SPDX-License-Identifier: Apache-2.0

package qdisc_test

import (
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestEmulateRates sets the slowest and the fastest rate of a wire, as tc shows them.
func TestEmulateRates(t *testing.T) {
	testkit.RequireTool(t, "tc")
	a, _ := testkit.VethPair(t)
	for text, want := range map[string]string{"1mbit": " rate 1Mbit ", "40gbit": " rate 40Gbit ",
		"400gbit": " rate 400Gbit "} {
		rate, err := qdisc.ParseRate(text)
		if err == nil {
			err = qdisc.Emulate(a, "left", rate, 0)
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		shown, err := exec.Command("tc", "-n", a.Name(), "qdisc", "show", "dev", "left").CombinedOutput()
		testkit.Check(t, err == nil && strings.Contains(string(shown), want), "%s: %v, %s, want %q", text, err, shown, want)
	}
}

// TestEmulateDelay is about netem, or the error where there is none.
func TestEmulateDelay(t *testing.T) {
	a, _ := testkit.VethPair(t)
	err := qdisc.Emulate(a, "left", 1e9, 10*time.Millisecond)
	if lacks := rtnl.In(a).TryQdisc("netem"); errors.Is(lacks, errors.ErrUnsupported) != errors.Is(err,
		errors.ErrUnsupported) {
		t.Errorf("error %v, but netem: %v", err, lacks)
	}
	testkit.RequireMode(t, err)
	began := time.Now()
	testkit.Succeed(t, testkit.Ping(a, netip.MustParseAddr("10.0.0.2"), 8))
	took := time.Since(began)
	testkit.Check(t, took >= 10*time.Millisecond, "an answer after %v", took)
}
