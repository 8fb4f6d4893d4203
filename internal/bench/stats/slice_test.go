// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestSliceLength(t *testing.T) {
	const slice = 10 * time.Millisecond
	rng := rand.New(rand.NewPCG(1, 2))
	walk, carried := 0.0, 0.0
	for _, tt := range []struct {
		name        string
		figure      func(i int) float64
		least, most time.Duration
	}{
		{"independent", func(int) float64 { return 1 + 0.01*rng.NormFloat64() }, slice, slice},
		{"spoilt", func(int) float64 {
			if rng.Float64() < 0.05 {
				return 1 / (1.05 + 0.45*rng.Float64())
			}
			return 1 + 0.01*rng.NormFloat64()
		}, slice, slice},
		{"drift", func(int) float64 {
			walk += 0.002 * rng.NormFloat64()
			return 1 + walk + 0.01*rng.NormFloat64()
		}, slice, slice},
		{"work carried over", func(int) float64 {
			before := carried
			carried = 0.03 * rng.NormFloat64()
			return 1 + carried - before + 0.01*rng.NormFloat64()
		}, 4 * slice, 16 * slice},
		{"bursts of 43 ms", func(i int) float64 {
			return 1 + 0.1*math.Sin(2*math.Pi*float64(i)/4.3) + 0.01*rng.NormFloat64()
		}, 4 * slice, 4 * slice},
		{"bursts with pauses", func(i int) float64 { return float64(i % 4 / 2) }, 4 * slice, 4 * slice},
		{"bursts of 163 ms", func(i int) float64 {
			return 1 + 0.1*math.Sin(2*math.Pi*float64(i)/16.3) + 0.01*rng.NormFloat64()
		}, 16 * slice, 16 * slice},
	} {
		wrong := 0
		for range 100 {
			figures := make([]float64, 500)
			for i := range figures {
				figures[i] = tt.figure(i)
			}
			if got := SliceLength(figures, slice); got < tt.least || got > tt.most {
				wrong++
			}
		}
		if wrong > 5 {
			t.Errorf("%s: %d of 100 lengths are not from %v to %v", tt.name, wrong, tt.least, tt.most)
		}
	}
}

func TestSliceLengthOfTooFewFigures(t *testing.T) {
	for _, figures := range [][]float64{
		nil, {1}, {1, 2}, {0, 0, 0}, {math.NaN(), math.Inf(1), -1}, {math.MaxFloat64, 1, math.MaxFloat64, 1}, make([]float64, 100),
	} {
		if got := SliceLength(figures, time.Second); got != time.Second {
			t.Errorf("%v: %v", figures, got)
		}
	}
}
