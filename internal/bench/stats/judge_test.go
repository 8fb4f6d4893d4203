// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestHolm(t *testing.T) {
	for _, tt := range []struct{ p, want []float64 }{
		{nil, nil},
		{[]float64{0.03}, []float64{0.03}},
		{[]float64{0.01, 0.04, 0.03, 0.005}, []float64{0.03, 0.06, 0.06, 0.02}}, // R: p.adjust(p, "holm")
		{[]float64{0.5, 0.6, 1}, []float64{1, 1, 1}},
		{[]float64{math.NaN(), 0.02, -1, 0}, []float64{1, 0.06, 1, 0}},
	} {
		got := Holm(tt.p)
		for i, want := range tt.want {
			if math.Abs(got[i]-want) > 1e-12 {
				t.Errorf("Holm(%v) = %v, want %v", tt.p, got, tt.want)
			}
		}
	}
}

func TestJudge(t *testing.T) {
	claim := func(class string, aa bool, over Level, p, low, high float64) Claim {
		return Claim{Comparison{Estimate{Value: math.Sqrt(low * high), Interval: &[2]float64{low, high}, Over: over}, p}, class, aa}
	}
	none := Claim{Comparison: Comparison{P: 1}, Class: "kernel"}
	for _, tt := range []struct {
		name string
		Claim
		floor float64
		want  string
	}{
		{"above", claim("kernel", false, Lab, 1e-6, 1.05, 1.07), 0.02, "+"},
		{"below", claim("kernel", false, Process, 1e-6, 0.90, 0.95), 0.02, "-"},
		{"above, but not the floor", claim("kernel", false, Lab, 1e-6, 1.01, 1.03), 0.02, "~"},
		{"below, but not the floor", claim("kernel", false, Lab, 1e-6, 0.97, 0.985), 0.02, "~"},
		{"above by too little for so many claims", claim("kernel", false, Lab, 0.02, 1.03, 1.5), 0.02, "~"},
		{"over rounds of one connection", claim("kernel", false, Round, 1e-6, 1.05, 1.07), 0.02, "~"},
		{"no interval", none, 0.02, "~"},
		{"noisier class", claim("vm", false, Lab, 1e-6, 1.05, 1.07), 0.1, "~"},
		{"noisier class, larger", claim("vm", false, Lab, 1e-6, 1.2, 1.3), 0.1, "+"},
		{"class without A/A pair", claim("two hosts", false, Lab, 1e-6, 1.001, 1.002), -1, "+"},
		{"A/A", claim("kernel", true, Lab, 0.6, 0.99, 1.02), 0, "~"},
		{"A/A, wider", claim("vm", true, Lab, 0.6, 1/1.1, 1.01), 0, "~"},
		{"A/A, biased", claim("user", true, Lab, 1e-6, 1.02, 1.04), 0, "+"},
		{"as large as the bias", claim("user", false, Lab, 1e-6, 1.02, 1.04), 0.04, "~"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Each is judged together with those that give the floors and the number of claims.
			claims := []Claim{
				claim("kernel", true, Lab, 0.9, 0.99, 1.02), claim("vm", true, Lab, 0.9, 1/1.1, 1.01),
				claim("user", true, Lab, 0.9, 1.02, 1.04), none, none, tt.Claim,
			}
			got := Judge(claims)[len(claims)-1]
			if got.String() != tt.want || math.Abs(got.Floor-tt.floor) > 1e-9 {
				t.Errorf("%v with floor %g, want %s with %g", got, got.Floor, tt.want, tt.floor)
			}
			if want := tt.P * 3; !tt.AA && math.Abs(got.P-min(1, want)) > 1e-9 {
				t.Errorf("p %g, want %g", got.P, want)
			}
		})
	}
	if got := Judge(nil); len(got) != 0 {
		t.Errorf("verdicts on nothing: %v", got)
	}
}

// TestFewFalseDifferences judges 250 answers of 40 claims each that are all equal.
func TestFewFalseDifferences(t *testing.T) {
	t.Parallel()
	const answers, claims = 250, 40
	rng := rand.New(rand.NewPCG(1, 2))
	n := Counts{6, 1, 1, 5}
	byP, found := 0, 0
	for range answers {
		all := []Claim{{Comparison: Compare(simulate(rng, n, requests.with(0.05), 1)), AA: true}}
		for range claims {
			all = append(all, Claim{Comparison: Compare(simulate(rng, n, requests.with(0.05), 1))})
		}
		low, differs := false, false
		for _, v := range Judge(all)[1:] {
			low = low || v.P < 0.05
			differs = differs || v.Difference != 0
		}
		if low {
			byP++
		}
		if differs {
			found++
		}
	}
	t.Logf("of %d answers %d have an adjusted p under 0.05, %d a false difference", answers, byP, found)
	if byP > answers*8/100 { // 5 % and two standard deviations of the count
		t.Errorf("%d of %d answers have an adjusted p under 0.05", byP, answers)
	}
	if found > answers/100 {
		t.Errorf("%d of %d answers have a false difference", found, answers)
	}
}

// TestHalfAPercentIsFound injects a difference of 0.5 % into each answer of ten claims.
func TestHalfAPercentIsFound(t *testing.T) {
	t.Parallel()
	const answers = 100
	rng := rand.New(rand.NewPCG(1, 2))
	n := Counts{12, 2, 2, 5}
	found, mean := 0, 0.0
	for range answers {
		all := []Claim{
			{Comparison: Compare(simulate(rng, n, streams.with(0.05), 1)), AA: true},
			{Comparison: Compare(simulate(rng, n, streams.with(0.05), 0.995))},
		}
		for range 9 {
			all = append(all, Claim{Comparison: Comparison{P: 1}})
		}
		if Judge(all)[1].Difference < 0 {
			found++
		}
		mean += all[1].Value / answers
	}
	t.Logf("found in %d of %d answers, mean ratio %.5f", found, answers, mean)
	if found < 90 {
		t.Errorf("found in %d of %d answers", found, answers)
	}
	if math.Abs(mean-0.995) > 0.0003 {
		t.Errorf("the mean ratio is %.5f, injected was 0.995", mean)
	}
}
