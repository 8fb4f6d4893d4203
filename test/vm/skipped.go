// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// readSkipped reads a file of testkit.SkippedVariable. It returns a go test -run pattern for each package directory.
// It keeps only tests whose whole name matches only; an empty pattern keeps all. If the list is not empty, no match
// is an error.
func readSkipped(path, only string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	keep, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	tests := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		dir, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok || dir == "" || name == "" {
			return nil, fmt.Errorf("%s: %q: want a directory, a tab and a test", path, line)
		}
		if keep.MatchString(name) {
			tests[dir] = append(tests[dir], name)
		}
	}
	if len(tests) == 0 && len(data) > 0 {
		return nil, fmt.Errorf("%s: no test matches %q", path, only)
	}
	patterns := make(map[string]string, len(tests))
	for dir, names := range tests {
		patterns[dir] = pattern(names)
	}
	return patterns, nil
}

// pattern matches these tests with their subtests, and their parents, which go test must run too.
func pattern(names []string) string {
	slices.Sort(names)
	var alternatives []string
	for _, name := range slices.Compact(names) {
		elements := strings.Split(name, "/")
		for i, element := range elements {
			elements[i] = "^" + regexp.QuoteMeta(element) + "$"
		}
		alternatives = append(alternatives, strings.Join(elements, "/"))
	}
	return strings.Join(alternatives, "|")
}
