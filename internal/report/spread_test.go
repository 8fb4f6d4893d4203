// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"strings"
	"testing"

	"mustang/internal/report/text"
	"mustang/internal/result"
)

// ofClass sets the class of a comparison, which may be one of a path with itself.
func ofClass(c result.Comparison, class string) result.Comparison {
	c.Class, c.AA = class, strings.HasSuffix(c.Numerator, "/again")
	return c
}

// twoClasses is a file in which paths in the kernel are quiet, and those through user space are
// not: one of them measured twice may differ by 30 %.
func twoClasses(t *testing.T) result.File {
	again := func(link string, median float64) result.Row {
		row := podRow(link, median, median*0.99, median*1.01)
		row.ID, row.Repeats = link+"/pod-ip/again", link+"/pod-ip"
		return row
	}
	return result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Run: result.Run{Suite: "pod-links", Comparisons: []result.Comparison{
		ofClass(versus("veth/pod-ip/again", "veth/pod-ip", 10, [3]float64{1.001, 0.997, 1.004}), "kernel"),
		ofClass(versus("tun/pod-ip/again", "tun/pod-ip", 10, [3]float64{1.01, 0.75, 1.3}), "user space"),
		ofClass(versus("tun/cluster-ip/iptables", "tun/pod-ip", 10, [3]float64{0.99, 0.7, 1.3}), "user space"),
		ofClass(versus("tun/cluster-ip/nftables", "tun/pod-ip", 10, [3]float64{0.98, 0.7, 1.3}), "user space"),
		ofClass(versus("macvlan/pod-ip", "bridge/pod-ip", 10, [3]float64{1.3, 1.29, 1.31}), "kernel"),
	}}, Rows: []result.Row{
		podRow("veth", 40, 39.9, 40.1), again("veth", 40), podRow("macvlan", 44, 43.9, 44.1), podRow("bridge", 33, 32.9, 33.1),
		podRow("tun", 9, 8.9, 9.1), again("tun", 9), cluster("tun", result.ViaIPTables), cluster("tun", result.ViaNFTables),
	}}
}

// TestKernelTellsNoise checks that only paths in the kernel make a run too noisy, though most
// comparisons are of others.
func TestKernelTellsNoise(t *testing.T) {
	const warning = "This run is too noisy"
	f := twoClasses(t)
	checkSays(t, briefOf(t, f, 0), nil, []string{warning})
	f.Run.Comparisons[0].CI95 = &[2]float64{0.9, 1.1}
	checkSays(t, strings.Join(strings.Fields(briefOf(t, f, 0)), " "), []string{warning + ": the same path in the kernel measured twice may differ by 10.0 % in throughput"}, nil)
	f = twoClasses(t)
	f.Run.Comparisons[4].CI95 = &[2]float64{1.2, 1.4}
	checkSays(t, strings.Join(strings.Fields(briefOf(t, f, 0)), " "), []string{warning + ": half of its comparisons of paths in the kernel are uncertain by 7.7 % or more"}, nil)
}

// TestSpreadOfItsClass checks that the spread of paths through user space hides no difference
// between paths in the kernel: macvlan and veth, 10 % apart, were not compared within rounds.
func TestSpreadOfItsClass(t *testing.T) {
	f := twoClasses(t)
	checkSays(t, briefOf(t, f, 0), []string{"Throughput: macvlan, 44.00 Gbit/s.", "choose macvlan."}, []string{"tied with it"})
	said := strings.Join(strings.Fields(textOf(t, f, text.Options{})), " ")
	checkSays(t, said, []string{
		"Throughput: in the kernel no difference smaller than 0.4 % can be told",
		"through user space no difference smaller than 30.0 % can be told",
	}, nil)
	checkSays(t, wordsOf(pageOf(t, f)), []string{"The band (± 0.4 %) is the spread of the same thing measured twice in the kernel (A/A)"}, nil)
}

// TestTwoCPUsAreAClass checks that the spread of paths on two CPUs is told apart from that of
// paths on one.
func TestTwoCPUsAreAClass(t *testing.T) {
	f := twoClasses(t)
	for i := range f.Run.Comparisons {
		if c := &f.Run.Comparisons[i]; c.Class == result.ClassUserSpace {
			c.Class = result.ClassTwoCPUs
		}
	}
	said := strings.Join(strings.Fields(textOf(t, f, text.Options{})), " ")
	checkSays(t, said, []string{
		"in the kernel no difference smaller than 0.4 % can be told", "on two CPUs no difference smaller than 30.0 % can be told",
	}, nil)
}

// TestCostDigits checks that costs have as many digits as their intervals and the width allow, and that no
// interval is said to be nothing.
func TestCostDigits(t *testing.T) {
	f := sample(t, "turns")
	for i := range f.Run.Comparisons {
		switch c := &f.Run.Comparisons[i]; c.Numerator {
		case "macvlan/cluster-ip/iptables":
			c.Ratio, c.CI95 = 0.9874, &[2]float64{0.9862, 0.9886}
		case "macvlan/cluster-ip/nftables":
			if c.Denominator == "macvlan/pod-ip" {
				c.Ratio, c.CI95 = 0.9956, &[2]float64{0.9954, 0.9958}
			}
		}
	}
	out := strings.Join(strings.Fields(briefOf(t, f, 0)), " ")
	checkSays(t, out, []string{"1.26±.12 0.44±.02", "≈10±42", "nftables costs less than iptables: 0.4 % against 1.3 %"}, nil)
	narrow := strings.Join(strings.Fields(briefOf(t, f, 43)), " ")
	checkSays(t, narrow, []string{"1.3±.2 0.4±.1", "≈10±42"}, []string{"±.0", "±0"})
	narrower := strings.Join(strings.Fields(briefOf(t, f, 37)), " ")
	checkSays(t, narrower, []string{"macvlan 40.0 1±1 0±1"}, []string{"±."})

	for i := range f.Run.Comparisons { // beyond all sense
		if c := &f.Run.Comparisons[i]; c.Numerator == "veth+ebpf/cluster-ip" {
			c.CI95 = &[2]float64{0.02, 27}
		}
	}
	checkSays(t, strings.Join(strings.Fields(briefOf(t, f, 0)), " "), []string{"≈10±>99"}, []string{"±2,"})
}
