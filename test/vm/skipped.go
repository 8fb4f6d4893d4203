// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// readSkipped reads a file of testkit.SkippedVariable: it returns the pattern of the
// tests of each package, as of go test -run, by its directory.
func readSkipped(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	tests := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		dir, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok || dir == "" || name == "" {
			return nil, fmt.Errorf("%s: %q: want a directory, a tab and a test", path, line)
		}
		tests[dir] = append(tests[dir], name)
	}
	patterns := make(map[string]string, len(tests))
	for dir, names := range tests {
		patterns[dir] = pattern(names)
	}
	return patterns, nil
}

// pattern matches these tests and nothing else but what is below them and, as go
// test has to, above them.
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
