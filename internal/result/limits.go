// SPDX-License-Identifier: Apache-2.0

package result

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Limits of a file, far above those of any run. They bound the time and the memory
// that a reader of an odd or hostile file needs.
const (
	maxBytes     = 64 << 20
	maxWorkloads = 50    // of a suite, each number of flows counted
	maxList      = 1_000 // of each list that has no limit of its own
	maxName      = 500   // bytes of a string that is not a text
	maxText      = 64 << 10
	maxFigure    = 1e15
)

// maxLengths are the limits of lists that have limits of their own, by the field's name in the file.
var maxLengths = map[string]int{
	"samples": MaxSamples, "positions": MaxSamples, "ratios": MaxSamples, "rows": 5_000, "comparisons": 20_000,
	"pairs":  10_000,
	"suites": 100, "groups": 100, "series": 100, "traces": 300, "steps": 200,
}

// texts are the names of the fields that hold sentences.
var texts = []string{"question", "reason", "note", "notes", "hooks", "findings", "versions", "settings", "offloads"}

// limits checks a field's value, or a part of it: strings, lists and figures. A figure is a finite number, since JSON
// holds no other.
func (p *faults) limits(field string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if slices.Contains(texts, field) {
			p.most("bytes in a text of "+field, v.Len(), maxText)
		} else {
			p.most("bytes in a name of "+field, v.Len(), maxName)
		}
	case reflect.Float64:
		f := v.Float()
		p.check(math.IsNaN(f) || math.Abs(f) > maxFigure, "%s holds %g", field, f)
	case reflect.Pointer:
		if !v.IsNil() {
			p.limits(field, v.Elem())
		}
	case reflect.Map:
		if p.most(field, v.Len(), maxList) {
			for key, value := range v.Seq2() {
				p.limits(field, key)
				p.limits(field, value)
			}
		}
	case reflect.Slice, reflect.Array:
		most, own := maxLengths[field]
		if !own {
			most = maxList
		}
		if p.most(field, v.Len(), most) {
			for i := range v.Len() {
				p.limits(field, v.Index(i))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type() != reflect.TypeFor[time.Time]() {
				name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
				p.limits(name, v.Field(i))
			}
		}
	default:
	}
}
