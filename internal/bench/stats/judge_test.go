// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"mustang/internal/testkit"
)

// String returns the sign of the difference, and ~ where none was found.
func (v Verdict) String() string {
	return [...]string{"-", "~", "+"}[v.Difference+1]
}

func TestHolm(t *testing.T) {
	for _, tt := range []struct {
		p       []float64
		further int
		want    []float64
	}{
		{nil, 0, nil},
		{[]float64{0.03}, 0, []float64{0.03}},
		{[]float64{0.01, 0.04, 0.03, 0.005}, 0, []float64{0.03, 0.06, 0.06, 0.02}}, // R: p.adjust(p, "holm")
		{[]float64{0.5, 0.6, 1}, 0, []float64{1, 1, 1}},
		{[]float64{math.NaN(), 0.02, -1, 0}, 0, []float64{1, 0.06, 1, 0}},
		{[]float64{0.01, 0.03}, 3, []float64{0.05, 0.12}},
	} {
		got := Holm(tt.p, tt.further)
		for i, want := range tt.want {
			testkit.Check(t, !(math.Abs(got[i]-want) > 1e-12), "Holm(%v, %d) = %v, want %v", tt.p, tt.further, got, tt.want)
		}
	}
}

func TestJudge(t *testing.T) {
	claim := func(class string, aa bool, over Level, p, low, high float64) Claim {
		e := Estimate{Value: math.Sqrt(low * high), Interval: &[2]float64{low, high}, Over: over}
		return Claim{Comparison: Comparison{e, p}, Class: class, AA: aa}
	}
	none := Claim{Comparison: Comparison{P: 1}, Class: "kernel"}
	for _, tt := range []struct {
		name string
		Claim
		floor float64
		want  string
	}{
		{"above", claim("kernel", false, Lab, 1e-6, 1.05, 1.07), 0, "+"},
		{"below", claim("kernel", false, Process, 1e-6, 0.90, 0.95), 0, "-"},
		{"less than the noise of the A/A pair", claim("kernel", false, Lab, 1e-6, 1.005, 1.015), 0, "+"},
		{"above by too little for so many claims", claim("kernel", false, Lab, 0.02, 1.03, 1.5), 0, "~"},
		{"over rounds of one connection", claim("kernel", false, Round, 1e-6, 1.05, 1.07), 0, "~"},
		{"no interval", none, 0, "~"},
		{"class without A/A pair", claim("two hosts", false, Lab, 1e-6, 1.001, 1.002), -1, "+"},
		{"A/A", claim("kernel", true, Lab, 0.6, 0.99, 1.02), 0, "~"},
		{"A/A, wider", claim("vm", true, Lab, 0.6, 1/1.1, 1.01), 0, "~"},
		{"A/A, biased", claim("user", true, Lab, 1e-6, 1.02, 1.04), 0, "+"},
		{"as large as the bias", claim("user", false, Lab, 1e-6, 1.01, 1.04), 0.02, "~"},
		{"larger than the bias", claim("user", false, Lab, 1e-6, 1.03, 1.04), 0.02, "+"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Each claim is judged together with the claims that give the floors and the number of claims.
			claims := []Claim{
				claim("kernel", true, Lab, 0.9, 0.99, 1.02), claim("vm", true, Lab, 0.9, 1/1.1, 1.01),
				claim("user", true, Lab, 0.9, 1.02, 1.04), none, none, tt.Claim,
			}
			got := Judge(claims, 0)[len(claims)-1]
			testkit.Check(t, got.String() == tt.want && !(math.Abs(got.Floor-tt.floor) > 1e-9),
				"%v with floor %g, want %s with %g", got, got.Floor, tt.want, tt.floor)
			want := tt.P * 3
			testkit.Check(t, tt.AA || !(math.Abs(got.P-min(1, want)) > 1e-9), "p %g, want %g", got.P, want)
		})
	}
	got := Judge(nil, 0)
	testkit.Check(t, len(got) == 0, "verdicts on nothing: %v", got)
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
		for _, v := range Judge(all, 0)[1:] {
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
	testkit.Check(t, found <= byP,
		"%d of %d answers have a false difference, %d an adjusted p under 0.05", found, answers, byP)
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
		if Judge(all, 0)[1].Difference < 0 {
			found++
		}
		mean += all[1].Value / answers
	}
	t.Logf("found in %d of %d answers, mean ratio %.5f", found, answers, mean)
	testkit.Check(t, found >= 90, "found in %d of %d answers", found, answers)
	testkit.Check(t, !(math.Abs(mean-0.995) > 0.0003), "the mean ratio is %.5f, injected was 0.995", mean)
}

// TestFamilies checks that claims that the answer prints are corrected for each other alone: many other claims hide
// none.
func TestFamilies(t *testing.T) {
	asked := Claim{Comparison: Comparison{Estimate{Value: 0.79, Interval: &[2]float64{0.70, 0.89}, Over: Lab}, 0.004},
		Asked: true}
	claims := []Claim{asked}
	for range 80 {
		claims = append(claims, Claim{Comparison: Comparison{P: 0.5}})
	}
	v := Judge(claims, 0)[0]
	testkit.Check(t, v.Difference == -1 && v.P == asked.P, "among 80 claims that the answer does not print: %+v", v)
	v = Judge(claims, 12)[0]
	testkit.Check(t, v.Difference == 0, "with 12 further pairs among the rows that may win: %+v", v)
}

// TestPowerOfFourPercent finds a difference of 4 % beside an A/A pair of the same noise, in six labs of 56 rounds.
func TestPowerOfFourPercent(t *testing.T) {
	t.Parallel()
	const answers = 200
	rng := rand.New(rand.NewPCG(3, 4))
	v, found := noise{lab: 0.012, round: 0.08, spoilt: 0.08}, 0
	for range answers {
		all := []Claim{
			{Comparison: Compare(simulate(rng, Counts{6, 1, 1, 56}, v, 1)), AA: true},
			{Comparison: Compare(simulate(rng, Counts{6, 1, 1, 56}, v, 0.96)), Asked: true},
		}
		if Judge(all, 0)[1].Difference < 0 {
			found++
		}
	}
	t.Logf("found in %d of %d answers", found, answers)
	testkit.Check(t, found >= answers*80/100, "found in %d of %d answers", found, answers)
}

// TestLooksMissRarely stops at the first of three looks whose interval excludes 1, or goes on to the end. A run does
// the same with rows that rest once their question is answered. Of 1,000 such intervals at most 5 % miss the ratio.
func TestLooksMissRarely(t *testing.T) {
	t.Parallel()
	const times, ratio = 1000, 1.0
	rng := rand.New(rand.NewPCG(5, 6))
	spent := map[string][4]float64{"spent": {0.01 / 3, 0.01 / 3, 0.01 / 3, 0.04}, "not": {0.05, 0.05, 0.05, 0.05}}
	missed := map[string]int{}
	for range times {
		a, b := simulate(rng, Counts{20, 1, 1, 30}, noise{lab: 0.01, round: 0.08, spoilt: 0.08}, ratio)
		excluded := map[string]bool{}
		for look, labs := range []int{6, 10, 15, 20} {
			compared := Compare(a[:labs*30], b[:labs*30])
			for name, alpha := range spent {
				c := compared.Spent(alpha[look])
				excludes := c.Interval[0] > ratio || c.Interval[1] < ratio
				testkit.Require(t, excludes == (c.P < Significance), "interval %v, p %g", c.Interval, c.P)
				excluded[name] = excluded[name] || excludes
			}
		}
		for name, excludes := range excluded {
			if excludes {
				missed[name]++
			}
		}
	}
	t.Logf("of %d runs %v missed", times, missed)
	if missed["spent"] > times*63/1000 { // 5 % and two standard deviations of the count
		t.Errorf("%d of %d runs missed the ratio", missed["spent"], times)
	}
	testkit.Check(t, missed["not"] >= times*7/100,
		"without a correction only %d of %d runs missed: the test shows nothing", missed["not"], times)
}

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
