// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"reflect"
	"testing"

	"mustang/internal/testkit"
)

// TestDigestsHaveAllFields changes each field of a policy at any depth, and requires another digest: a change with an
// equal digest would not be enforced.
func TestDigestsHaveAllFields(t *testing.T) {
	var policy Policy
	fill(reflect.ValueOf(&policy).Elem())
	for _, rules := range [][]Rule{policy.Ingress, policy.Egress} { // a peer has one field
		all := rules[0].Peers[0]
		rules[0].Peers = []Peer{{Pods: all.Pods}, {Nodes: all.Nodes}, {Block: all.Block}}
	}
	before, changed := policy.Digest(), 0
	eachField(reflect.ValueOf(&policy).Elem(), "policy", func(path string, change func()) {
		change()
		changed++
		testkit.Check(t, policy.Digest() != before, "another %s leaves the digest as it is", path)
	})
	testkit.Check(t, changed >= 8, "only %d fields were changed", changed)
}

// twoPrefixes are values of a type whose fields are not to be seen.
var twoPrefixes = [2]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.0/25")}

// fill gives each field a value, and each list and map one element.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(twoPrefixes[0].Addr()))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(twoPrefixes[0]))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"key": "value"}))
	case reflect.String:
		v.SetString("text")
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(1)
	case reflect.Bool:
		v.SetBool(true)
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

func eachField(v reflect.Value, path string, do func(path string, change func())) {
	try := func(other any) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		do(path, func() { v.Set(reflect.ValueOf(other).Convert(v.Type())) })
		v.Set(old)
	}
	switch v.Interface().(type) {
	case netip.Addr:
		try(twoPrefixes[0].Addr().Next())
		return
	case netip.Prefix:
		try(twoPrefixes[1])
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachField(v.Field(i), path+"."+v.Type().Field(i).Name, do)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			eachField(v.Elem(), path, do)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachField(v.Index(i), path, do)
		}
		try(reflect.MakeSlice(v.Type(), 0, 0).Interface())
	case reflect.Map:
		try(map[string]string{"key": "other"})
		try(map[string]string{"another": "value"})
	case reflect.String:
		try("other")
	case reflect.Uint8, reflect.Uint16:
		try(v.Uint() + 1)
	case reflect.Bool:
		try(!v.Bool())
	}
}
