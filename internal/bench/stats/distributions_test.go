// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"testing"

	"mustang/internal/testkit"
)

// TestStudent compares with tables (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
func TestStudent(t *testing.T) {
	for freedom, want := range map[int]float64{2: 4.303, 3: 3.182, 5: 2.571, 9: 2.262, 29: 2.045, 100: 1.984, 1e6: 1.962} {
		got := quantile(freedom, 0.05)
		testkit.Check(t, !(math.Abs(got-want) > 0.0006),
			"quantile with %d degrees of freedom is %.4f, want %.3f", freedom, got, want)
		p := pValue(-got, 1, freedom)
		testkit.Check(t, !(math.Abs(p-0.05) > 1e-9), "p of the quantile with %d degrees of freedom is %g", freedom, p)
	}
	for alpha, want := range map[float64]float64{0.01: 3.250, 0.001: 4.781} {
		if got := quantile(9, alpha); math.Abs(got-want) > 0.0006 {
			t.Errorf("quantile of %g with 9 degrees of freedom is %.4f, want %.3f", alpha, got, want)
		}
	}
	// 1 - F(t) would be lost in rounding: for two degrees it is 1 - t/sqrt(t^2+2).
	p := pValue(1e6, 1, 2)
	testkit.Check(t, !(math.Abs(p/1e-12-1) > 1e-6), "p of 1e6 is %g", p)
	for _, tt := range []struct{ center, deviation, want float64 }{{0, 0, 1}, {0, 1, 1}, {1, 0, 0}, {1e300, 1e-300, 0}} {
		p := pValue(tt.center, tt.deviation, 5)
		testkit.Check(t, p == tt.want, "p of %g with deviation %g is %g", tt.center, tt.deviation, p)
	}
}

func TestAtMost(t *testing.T) {
	for _, tt := range []struct {
		k, n int
		want float64
	}{{0, 5, 1. / 32}, {1, 6, 7. / 64}, {5, 5, 1}, {0, 0, 1}, {2, 4, 11. / 16}, {499, 999, 0.5}, {10000, 20001, 0.5},
		{9859, 20000, 0.0235}} {
		got := atMost(tt.k, tt.n)
		testkit.Check(t, !(math.Abs(got-tt.want) > 0.0005), "at most %d of %d: %.4f, want %.4f", tt.k, tt.n, got, tt.want)
	}
}
