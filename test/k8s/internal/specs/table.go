// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// The tables stand between these lines.
const (
	Begin = "<!-- specs: make test-k8s-table -->"
	End   = "<!-- end of specs -->"
)

// order is that of columns and rows, where the alphabet's says nothing.
var order = []string{"conformance", "others", "netpol", "netpol-api v1beta1", "netpol-api v1alpha2", "short", "veth", "bridge", "macvlan", "one", "native", "vxlan", "three", "ipv4", "ipv6", "dual"}

// Replace replaces what stands between the lines Begin and End of the file with the tables, and writes the file.
func (s Summary) Replace(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := s.In(string(data))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// In returns the text with the tables between the lines Begin and End.
func (s Summary) In(text string) (string, error) {
	before, rest, ok := strings.Cut(text, Begin+"\n")
	_, after, ended := strings.Cut(rest, End+"\n")
	if !ok || !ended {
		return "", fmt.Errorf("no lines %s and %s", Begin, End)
	}
	return before + Begin + "\n" + s.tables() + End + "\n" + after, nil
}

// tables returns the tables: set-ups, the specs of each group, and what failed.
func (s Summary) tables() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nKubernetes %s. Specs that passed, of those that ran:\n\n", s.Kubernetes)
	groups := s.values(func(r Run) string { return r.Group })
	families := map[string][]string{}
	head, rule := "| links | nodes |", "|---|---|"
	for _, g := range groups {
		families[g] = s.values(func(r Run) string { return part(r, 1) }, g)
		for _, f := range families[g] {
			head, rule = head+" "+g+", "+label(f)+" |", rule+"--:|"
		}
	}
	fmt.Fprintln(&b, head+"\n"+rule)
	for _, link := range s.values(func(r Run) string { return part(r, 0) }) {
		for _, nodes := range s.values(func(r Run) string { return part(r, 2) }) {
			row, some := "| "+link+" | "+label(nodes)+" |", false
			for _, g := range groups {
				for _, f := range families[g] {
					cell := "-"
					if i := slices.IndexFunc(s.Runs, func(r Run) bool { return r.Group == g && r.Setup == link+"/"+f+"/"+nodes }); i >= 0 {
						cell, some = fmt.Sprintf("%d of %d", s.Runs[i].Passed, s.Runs[i].Passed+len(s.Runs[i].Failed)), true
					}
					row += " " + cell + " |"
				}
			}
			if some {
				fmt.Fprintln(&b, row)
			}
		}
	}
	for _, g := range groups {
		s.group(&b, g)
	}
	s.exceptions(&b)
	fmt.Fprintln(&b)
	return b.String()
}

// group writes the table of a group's specs: in how many set-ups of each link mode they passed.
func (s Summary) group(b *strings.Builder, group string) {
	links := s.values(func(r Run) string { return part(r, 0) }, group)
	fmt.Fprintf(b, "\nSet-ups in which each spec of %s passed:\n\n| %s | %s |\n|---|%s\n", group, group, strings.Join(links, " | "), strings.Repeat("--:|", len(links)))
	for _, name := range s.Groups[group] {
		row := "| " + short(name) + " |"
		for _, link := range links {
			passed, ran := 0, 0
			for _, r := range s.Runs {
				if _, skipped := r.Skipped[name]; r.Group != group || part(r, 0) != link || skipped {
					continue
				}
				ran++
				if _, failed := r.Failed[name]; !failed {
					passed++
				}
			}
			switch {
			case ran == 0:
				row += " - |"
			case passed == ran:
				row += fmt.Sprintf(" %d |", passed)
			default:
				row += fmt.Sprintf(" **%d of %d** |", passed, ran)
			}
		}
		fmt.Fprintln(b, row)
	}
}

// exceptions lists what failed, by name, and what skipped itself, by what it said.
func (s Summary) exceptions(b *strings.Builder) {
	failed, said, skipped, count := map[string][]string{}, map[string]string{}, map[string][]string{}, map[string]int{}
	for _, r := range s.Runs {
		for name, message := range r.Failed {
			failed[name] = append(failed[name], r.Setup)
			said[name] = "`" + strings.ReplaceAll(message, "`", "'") + "`"
			if cause, ok := s.Causes[name]; ok {
				said[name] = cause
			}
		}
		for _, message := range r.Skipped {
			if count[message]++; !slices.Contains(skipped[message], r.Setup) {
				skipped[message] = append(skipped[message], r.Setup)
			}
		}
	}
	fmt.Fprint(b, "\nFailed:\n\n")
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		fmt.Fprintf(b, "- %s (%s): %s\n", short(name), strings.Join(failed[name], ", "), said[name])
	}
	if len(failed) == 0 {
		fmt.Fprintln(b, "- none")
	}
	fmt.Fprint(b, "\nSkipped by themselves, by what they say:\n\n")
	for _, message := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(b, "- `%s`: %d (%s)\n", message, count[message], strings.Join(skipped[message], ", "))
	}
	if len(skipped) == 0 {
		fmt.Fprintln(b, "- none")
	}
}

// values returns what of says of all runs, or of those of a group, each once.
func (s Summary) values(of func(Run) string, group ...string) (all []string) {
	for _, r := range s.Runs {
		if v := of(r); !slices.Contains(all, v) && (len(group) == 0 || slices.Contains(group, r.Group)) {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		if i, j := slices.Index(order, a), slices.Index(order, b); i != j {
			return i - j
		}
		return strings.Compare(a, b)
	})
	return all
}

// part returns a part of a run's set-up: 0 is the link mode, 1 the family, 2 the nodes.
func part(r Run, i int) string {
	if parts := strings.Split(r.Setup, "/"); i < len(parts) {
		return parts[i]
	}
	return ""
}

// label returns what readers call a family or nodes.
func label(part string) string {
	switch part {
	case "ipv4":
		return "IPv4"
	case "ipv6":
		return "IPv6"
	case "one":
		return "1"
	case "three":
		return "3"
	case "native", "vxlan":
		return "2, " + part
	}
	return part
}

// short returns a spec's name without what all have.
func short(name string) string {
	for _, tag := range []string{"[sig-network] ", " [Conformance]", " [LinuxOnly]", " [NodeConformance]"} {
		name = strings.ReplaceAll(name, tag, "")
	}
	return strings.ReplaceAll(strings.Join(strings.Fields(name), " "), "|", `\|`)
}
