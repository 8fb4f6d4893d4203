// SPDX-License-Identifier: Apache-2.0

package report

import "testing"

// TestNumbers checks the ways to print figures.
func TestNumbers(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{number(1234567.8, 0), "1,234,568"},
		{number(999.96, 1), "1,000.0"},
		{number(-0.001, 1), "0.0"},
		{number(-1234, 0), "-1,234"},
		{number(12.345, decimals(12.345)), "12.35"},
		{number(0.5, decimals(58.6, 0.5)), "0.50"},
		{number(24512, decimals(24512)), "24,512"},
		{number(0, decimals()), "0"},
		{percent(0.2514), "25.1\u00a0%"},
		{percent(0.0003), "0.03\u00a0%"},
		{ratio(0.99951), "1.000"},
		{seconds(0.25), "250ms"},
		{seconds(2), "2s"},
		{memory(8323072000), "7.8 GiB"},
		{interval(nil, 1), "too few rounds"},
		{interval(&[2]float64{1, 2}, 1), "1.0 to 2.0"},
		{count(1, "round"), "1 round"},
		{count(2, "round"), "2 rounds"},
		{list([]string{"a", "b", "c"}), "a, b and c"},
		{shortNumber(25000, 0, true), "25k"},
		{shortNumber(0, 0, true), "0"},
		{shortNumber(0.95, 2, false), "0.95"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}
