// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// must returns the value of a call, and ends the test if the call failed: must(call())(t).
func must[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		succeed(t, err)
		return v
	}
}

func must2[V, W any](v V, w W, err error) func(testing.TB) (V, W) {
	return func(t testing.TB) (V, W) {
		t.Helper()
		succeed(t, err)
		return v, w
	}
}

// succeed ends the test if a call failed. what names the call: a format and its arguments.
func succeed(t testing.TB, err error, what ...any) {
	t.Helper()
	testkit.Require(t, err == nil, "%s%v", saying(what), err)
}

func noError(t testing.TB, err error, what ...any) {
	t.Helper()
	testkit.Check(t, err == nil, "%s%v", saying(what), err)
}

// equal fails the test unless a value is the wanted one.
func equal[V comparable](t testing.TB, got, want V, what ...any) {
	t.Helper()
	testkit.Check(t, got == want, "%s%v, want %v", saying(what), got, want)
}

// wantLen fails the test unless a list or map has so many items.
func wantLen(t testing.TB, list any, want int, what ...any) {
	t.Helper()
	testkit.Check(t, reflect.ValueOf(list).Len() == want, "%s%v, want %d", saying(what), list, want)
}

// failsAs ends the test unless an error is of a type, and returns it.
func failsAs[E error](t testing.TB, err error, what ...any) (e E) {
	t.Helper()
	testkit.Require(t, errors.As(err, &e), "%serror %v, want %T", saying(what), err, e)
	return e
}

// wantFull fails the test unless an error reports that a map is full.
func wantFull(t testing.TB, err error, table string) {
	t.Helper()
	equal(t, failsAs[*objects.FullError](t, err).Map, table, "the full map")
}

// failsWith fails the test unless an error matches another one.
func failsWith(t testing.TB, err, want error, what ...any) {
	t.Helper()
	testkit.Check(t, errors.Is(err, want), "%serror %v, want %v", saying(what), err, want)
}

// failIf fails the test if something is wrong, with a message from the format and its arguments.
func failIf(t testing.TB, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Errorf(format, args...)
	}
}

func saying(what []any) string {
	if len(what) == 0 {
		return ""
	}
	return fmt.Sprintf(what[0].(string), what[1:]...) + ": "
}

func errOf[V any](_ V, err error) error { return err }

func errOf2[V, W any](_ V, _ W, err error) error { return err }
