// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"mustang/internal/suggest"
	"slices"
	"strings"
)

// List returns all suites, in the order in which they are listed and run.
func List() []Suite {
	return []Suite{interfaces(), latency(), podLinks(), ipv6(), services(), policy(), twoCPUs(), switching(), docker(), cni()}
}

// Names returns the names of all suites, and [All].
func Names() []string {
	var names []string
	for _, suite := range List() {
		names = append(names, suite.Name)
	}
	return append(names, All)
}

// Lookup returns the suites of these names, each once and in the order of List; all of them for [All].
func Lookup(names ...string) ([]Suite, error) {
	for _, name := range names {
		if known := Names(); !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown suite %q (known: %s)%s", name, strings.Join(known, ", "), suggest.Text(name, known))
		}
	}
	return slices.DeleteFunc(List(), func(s Suite) bool { return !slices.Contains(names, All) && !slices.Contains(names, s.Name) }), nil
}
