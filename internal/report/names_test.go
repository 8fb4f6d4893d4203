// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/podlink"
	"mustang/internal/report/render"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestNoNames checks that no source of the report names a suite or a link mode: they come from the file.
func TestNoNames(t *testing.T) {
	var suiteNames, modes []string
	for _, suite := range suites.List() {
		suiteNames = append(suiteNames, suite.Name)
	}
	for _, mode := range podlink.Modes() {
		modes = append(modes, mode.Name())
	}
	word := regexp.MustCompile(`[a-z][a-z0-9-]*`)
	named := func(text string) bool {
		if slices.Contains(suiteNames, text) {
			return true
		}
		return slices.ContainsFunc(word.FindAllString(strings.ToLower(text), -1),
			func(w string) bool { return slices.Contains(modes, w) })
	}
	testkit.Require(t, named("latency") && !named("p99 latency") && named(`x == "veth"`), "the test knows no names")
	files := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
			return err
		}
		files++
		if filepath.Ext(path) != ".go" {
			data, err := os.ReadFile(path)
			testkit.Check(t, err != nil || !named(string(data)), "%s names a link mode", path)
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				testkit.Check(t, err == nil && !named(text), "%s: %s names a suite or a link mode", path, lit.Value)
			}
			return true
		})
		return nil
	})
	testkit.Check(t, err == nil && files >= 15, "%d files, %v", files, err)
}

// TestCosts checks that the parts of CPU time and the time of programs are in wide tables and on the page, and that
// the table is missing without them.
func TestCosts(t *testing.T) {
	without := podRow("macvlan", 40, 39, 41)
	plain := podRow("veth", 30, 29, 31)
	plain.CPUUSPerUnit, plain.CPUUnit, plain.CPUSplit = 212, "MB", &result.CPUSplit{UserUS: 4.25, SystemUS: 130,
		SoftirqUS: 77.5}
	ebpf := podRow("veth+ebpf", 33, 32, 34)
	ebpf.CPUUSPerUnit, ebpf.CPUUnit, ebpf.CPUSplit = 201, "MB", &result.CPUSplit{UserUS: 4.5, SystemUS: 125, SoftirqUS: 71}
	ebpf.BPFNanos = []result.ProgramTime{{Program: "from_pod", RunsPerUnit: 25.8, NanosPerRun: 49.3},
		{Program: "to_pod", RunsPerUnit: 25.8, NanosPerRun: 7.25}}
	f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: []result.Row{plain, ebpf, without},
		Run: result.Run{Suite: "pod-links"}}
	want := []string{"CPU time, throughput", "CPU µs per MB user system softirq eBPF programs", "212 4.25 130 77.5",
		"from_pod 49.3 ns, 25.8 per MB; to_pod 7.25 ns, 25.8 per MB"}
	for where, got := range map[string]string{"wide": textOf(t, f, render.Options{Wide: true}), "page": wordsOf(pageOf(t,
		f))} {
		t.Run(where, func(t *testing.T) { checkSays(t, strings.Join(strings.Fields(got), " "), want, nil) })
	}
	f.Rows = f.Rows[2:]
	checkSays(t, textOf(t, f, render.Options{Wide: true})+wordsOf(pageOf(t, f)), nil, []string{"CPU time, throughput"})
}

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
		[]string{"One path measured twice may differ by 0.4 % (streams), 30 % (streams on two CPUs)."}, nil)
}
