// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"strings"
	"testing"

	"mustang/internal/result"
)

// ofClass sets the class of a comparison, which may be one of a path with itself.
func ofClass(c result.Comparison, class string) result.Comparison {
	c.Class, c.AA = class, strings.HasSuffix(c.Numerator, "/again")
	return c
}

// twoClasses is a file with quiet paths in the kernel, and noisy ones through user space: one of them measured twice
// may differ by 30 %.
func twoClasses(t *testing.T) result.File {
	again := func(link string, median float64) result.Row {
		row := podRow(link, median, median*0.99, median*1.01)
		row.ID, row.Repeats = link+"/pod-ip/again", link+"/pod-ip"
		return row
	}
	return result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Run: result.Run{Suite: "pod-links",
		Comparisons: []result.Comparison{
			ofClass(versus("veth/pod-ip/again", "veth/pod-ip", 10, [3]float64{1.001, 0.997, 1.004}), "kernel"),
			ofClass(versus("tun/pod-ip/again", "tun/pod-ip", 10, [3]float64{1.01, 0.75, 1.3}), "user space"),
			ofClass(versus("tun/cluster-ip/iptables", "tun/pod-ip", 10, [3]float64{0.99, 0.7, 1.3}), "user space"),
			ofClass(versus("tun/cluster-ip/nftables", "tun/pod-ip", 10, [3]float64{0.98, 0.7, 1.3}), "user space"),
			ofClass(versus("macvlan/pod-ip", "bridge/pod-ip", 10, [3]float64{1.3, 1.29, 1.31}), "kernel"),
		}}, Rows: []result.Row{
		podRow("veth", 40, 39.9, 40.1), again("veth", 40), podRow("macvlan", 44, 43.9, 44.1),
		podRow("bridge", 33, 32.9, 33.1),
		podRow("tun", 9, 8.9, 9.1), again("tun", 9), cluster("tun", result.ViaIPTables), cluster("tun", result.ViaNFTables),
	}}
}

// TestTwoCPUsAreAClass checks that the report lists the spread of paths on two CPUs apart from the spread of paths
// on one.
func TestTwoCPUsAreAClass(t *testing.T) {
	f := twoClasses(t)
	for i := range f.Run.Comparisons {
		if c := &f.Run.Comparisons[i]; c.Class == result.ClassUserSpace {
			c.Class = result.ClassTwoCPUs
		}
	}
	checkSays(t, said(t, f),
		[]string{"The same path measured twice agreed within 0.4 % (streams), 30 % (streams on two CPUs)."}, nil)
}
