// SPDX-License-Identifier: Apache-2.0

package report

import "testing"

// TestCountedGolden compares a table of made-up instructions to a stored one.
func TestCountedGolden(t *testing.T) {
	golden(t, "counted.txt", tableOf(t, allModes(true), TableOptions{Width: 100}))
}

// TestTableGolden compares whole tables of made-up data to stored ones.
func TestTableGolden(t *testing.T) {
	for _, tc := range []struct {
		file    string
		rounds  int
		options TableOptions
	}{
		{file: "made-up.txt", rounds: 10},
		{file: "made-up-80.txt", rounds: 10, options: TableOptions{Width: 80}},
		{file: "made-up-wide.txt", rounds: 10, options: TableOptions{Wide: true}},
		{file: "made-up-3-rounds.txt", rounds: 3, options: TableOptions{Width: 100}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			golden(t, tc.file, tableOf(t, truncated(madeUp(t), tc.rounds), tc.options))
		})
	}
}

// TestSuitesGolden compares a table of all suites, made up, to a stored one.
func TestSuitesGolden(t *testing.T) {
	golden(t, "suites.txt", tableOf(t, allSuites(), TableOptions{Width: 100}))
	golden(t, "cni.txt", tableOf(t, oneSuite(suiteCNI), TableOptions{Width: 100}))
	golden(t, "latency.txt", tableOf(t, oneSuite(suiteLatency), TableOptions{Width: 100}))
}
