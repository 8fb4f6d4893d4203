// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// The tables stand between these lines.
const (
	tablesBegin = "<!-- specs: make test-k8s-table -->"
	tablesEnd   = "<!-- end of specs -->"
)

// order is the order of columns and rows, where the alphabet does not decide.
var order = []string{"conformance", "others", "netpol", "netpol-api v1beta1", "netpol-api v1alpha2", "short", "veth",
	"bridge", "macvlan", "one", "native", "vxlan", "three", "ipv4", "ipv6", "dual"}

// labels are the readers' names of families and nodes.
var labels = map[string]string{"ipv4": "IPv4", "ipv6": "IPv6", "dual": "dual", "one": "1", "three": "3",
	"native": "2, native", "vxlan": "2, vxlan"}

// replace replaces the text between two lines of a file with the tables, and writes the file.
func (s summary) replace(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := s.in(string(data))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// in returns the text with the tables between two lines.
func (s summary) in(text string) (string, error) {
	before, rest, ok := strings.Cut(text, tablesBegin+"\n")
	_, after, ended := strings.Cut(rest, tablesEnd+"\n")
	if !ok || !ended {
		return "", fmt.Errorf("no lines %s and %s", tablesBegin, tablesEnd)
	}
	return before + tablesBegin + "\n" + s.tables() + tablesEnd + "\n" + after, nil
}

// tables returns the tables: set-ups, the specs of each group, and failures.
func (s summary) tables() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nKubernetes %s. Specs that passed, of those that ran:\n\n| links | nodes |", s.Kubernetes)
	columns := distinct(s.Runs, func(r specRun) [2]string { return [2]string{r.Group, r.family()} })
	for _, c := range columns {
		fmt.Fprintf(&b, " %s, %s |", c[0], labels[c[1]])
	}
	fmt.Fprintln(&b, "\n|---|---|"+strings.Repeat("--:|", len(columns)))
	for _, row := range distinct(s.Runs, func(r specRun) [2]string { return [2]string{r.link(), r.nodes()} }) {
		fmt.Fprintf(&b, "| %s | %s |", row[0], labels[row[1]])
		for _, c := range columns {
			cell := "-"
			for _, r := range s.Runs {
				if r.Group == c[0] && r.Setup == row[0]+"/"+c[1]+"/"+row[1] {
					cell = fmt.Sprintf("%d of %d", r.Passed, r.Passed+len(r.Failed))
				}
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		fmt.Fprintln(&b)
	}
	for _, g := range distinct(s.Runs, func(r specRun) [2]string { return [2]string{r.Group} }) {
		s.group(&b, g[0])
	}
	s.exceptions(&b)
	fmt.Fprintln(&b)
	return b.String()
}

// group writes the table of a group's specs: in how many set-ups of each link mode they passed.
func (s summary) group(b *strings.Builder, group string) {
	runs := slices.DeleteFunc(slices.Clone(s.Runs), func(r specRun) bool { return r.Group != group })
	links := distinct(runs, func(r specRun) [2]string { return [2]string{r.link()} })
	fmt.Fprintf(b, "\nSet-ups in which each spec of %s passed:\n\n| %[1]s |", group)
	for _, link := range links {
		fmt.Fprintf(b, " %s |", link[0])
	}
	fmt.Fprintln(b, "\n|---|"+strings.Repeat("--:|", len(links)))
	for _, name := range s.Groups[group] {
		fmt.Fprintf(b, "| %s |", short(name))
		for _, link := range links {
			ran, passed := 0, 0
			for _, r := range runs {
				_, skipped := r.Skipped[name]
				_, failed := r.Failed[name]
				if r.link() == link[0] && !skipped {
					ran++
					if !failed {
						passed++
					}
				}
			}
			switch {
			case ran == 0:
				fmt.Fprint(b, " - |")
			case passed == ran:
				fmt.Fprintf(b, " %d |", passed)
			default:
				fmt.Fprintf(b, " **%d of %d** |", passed, ran)
			}
		}
		fmt.Fprintln(b)
	}
}

// exceptions lists failed specs, by name, and specs that skipped themselves, by their message.
func (s summary) exceptions(b *strings.Builder) {
	failed, said, skipped, count := map[string][]string{}, map[string]string{}, map[string][]string{}, map[string]int{}
	for _, r := range s.Runs {
		for name, message := range r.Failed {
			failed[name] = append(failed[name], r.Setup)
			said[name] = cmp.Or(s.Causes[name], "`"+strings.ReplaceAll(message, "`", "'")+"`")
		}
		for _, message := range r.Skipped {
			if count[message]++; !slices.Contains(skipped[message], r.Setup) {
				skipped[message] = append(skipped[message], r.Setup)
			}
		}
	}
	list := func(title string, of map[string][]string, line func(name, setups string) string) {
		fmt.Fprintf(b, "\n%s:\n\n", title)
		for _, name := range slices.Sorted(maps.Keys(of)) {
			fmt.Fprintln(b, line(name, strings.Join(of[name], ", ")))
		}
		if len(of) == 0 {
			fmt.Fprintln(b, "- none")
		}
	}
	list("Failed", failed, func(name, setups string) string {
		return fmt.Sprintf("- %s (%s): %s", short(name), setups,
			said[name])
	})
	list("Skipped by themselves, by what they say", skipped, func(message, setups string) string {
		return fmt.Sprintf("- `%s`: %d (%s)", message, count[message], setups)
	})
}

// distinct returns the results of of for runs, each once, in the order of tables.
func distinct(runs []specRun, of func(specRun) [2]string) (all [][2]string) {
	for _, r := range runs {
		all = append(all, of(r))
	}
	slices.SortFunc(all, func(a, b [2]string) int {
		return cmp.Or(slices.Index(order, a[0])-slices.Index(order, b[0]), slices.Index(order, a[1])-slices.Index(order,
			b[1]), slices.Compare(a[:], b[:]))
	})
	return slices.Compact(all)
}

// link, family and nodes are the parts of a run's set-up.
func (r specRun) link() string   { return strings.Split(r.Setup, "/")[0] }
func (r specRun) family() string { return strings.Split(r.Setup, "/")[1] }
func (r specRun) nodes() string  { return strings.Split(r.Setup, "/")[2] }

// short returns a spec's name without the common parts.
func short(name string) string {
	name = strings.NewReplacer("[sig-network] ", "", " [Conformance]", "", " [LinuxOnly]", "", " [NodeConformance]", "",
		"|", `\|`).Replace(name)
	return strings.Join(strings.Fields(name), " ")
}
