// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"strings"
)

// List returns all suites, in the order in which they are listed and run.
func List() []Suite {
	return []Suite{interfaces(), latency(), podLinks(), ipv6(), services(), policy(), twoCPUs(), switching(), docker(), cni()}
}

// Lookup returns the suite of that name, or all of them for [All].
func Lookup(name string) ([]Suite, error) {
	suites := List()
	if name == All {
		return suites, nil
	}
	var known []string
	for _, suite := range suites {
		if suite.Name == name {
			return []Suite{suite}, nil
		}
		known = append(known, suite.Name)
	}
	return nil, fmt.Errorf("unknown suite %q (known: %s, %s)", name, strings.Join(known, ", "), All)
}
