// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestNothingToMeasure slows a wire in a way that the kernel may lack: then no row can be measured, which is an error
// that names the reason once, and no result.
func TestNothingToMeasure(t *testing.T) {
	o := testOptions(t, "host tcp_rr", "veth tcp_rr")
	o.Suites, o.WireDelay = lookup(t, "latency"), 50*time.Microsecond
	lacks := rtnl.In(testkit.Namespace(t, "netem")).TryQdisc("netem")
	file, err := Run(context.Background(), o)
	if !errors.Is(lacks, errors.ErrUnsupported) {
		if err != nil || len(file.Rows) == 0 {
			t.Errorf("%d rows, %v", len(file.Rows), err)
		}
		return
	}
	if err == nil || !strings.HasPrefix(err.Error(), "no row can be measured: kernel ") || strings.Count(err.Error(), "netem queues") != 1 {
		t.Errorf("error %v", err)
	}
	if entries, err := os.ReadDir(o.Out.Path); err != nil || len(entries) > 0 {
		t.Errorf("in the run's directory are %v, %v", entries, err)
	}
}
