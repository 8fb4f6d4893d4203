// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// object is a JSON object that is read key by key. What is left when all keys
// that there are have been asked for is unknown. Of several errors the first
// counts, and does not keep other keys from being read.
type object struct {
	path   string // where the object is in the configuration, empty for the whole
	fields map[string]json.RawMessage
	err    error
}

// parseObject begins to read an object.
func parseObject(path string, data []byte) *object {
	o := &object{path: path}
	if err := json.Unmarshal(data, &o.fields); err != nil || o.fields == nil {
		o.err = types.NewError(types.ErrDecodingFailure, o.at("want a JSON object, got %s", excerpt(data)), "")
	}
	return o
}

// at is a message about the object.
func (o *object) at(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	if o.path == "" {
		return text
	}
	return o.path + ": " + text
}

// key is a key's place in the whole configuration.
func (o *object) key(name string) string {
	if o.path == "" {
		return name
	}
	return o.path + "." + name
}

// take returns the value of a key, which is known from now on.
func (o *object) take(name string) (json.RawMessage, bool) {
	raw, ok := o.fields[name]
	delete(o.fields, name)
	if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return nil, false
	}
	return raw, ok
}

// read stores the value of a key, if there is one. want says what it should be.
func (o *object) read(name, want string, into any) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	if err := json.Unmarshal(raw, into); err != nil && o.err == nil {
		o.err = invalid("%s: want %s, got %s", o.key(name), want, excerpt(raw))
	}
}

// part stores what read makes of the value of a key, if there is one.
func part[T any](o *object, name string, into *T, read func(json.RawMessage) (T, error)) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	var err error
	if *into, err = read(raw); o.err == nil {
		o.err = err
	}
}

// each calls fn with each element of an array of objects, if there is one.
func (o *object) each(name string, fn func(*object)) {
	var elements []json.RawMessage
	o.read(name, "an array of objects", &elements)
	for i, raw := range elements {
		element := parseObject(fmt.Sprintf("%s[%d]", o.key(name), i), raw)
		if element.err == nil {
			fn(element)
		}
		if o.err == nil {
			o.err = element.finish()
		}
	}
}

// fold has keys found however their letters are written. What runtimes pass has
// such keys: containerd encodes structs without names for JSON, which Go's decoder
// takes too.
func (o *object) fold(names ...string) {
	for _, name := range names {
		for key, raw := range o.fields {
			if _, taken := o.fields[name]; !taken && strings.EqualFold(key, name) {
				delete(o.fields, key)
				o.fields[name] = raw
			}
		}
	}
}

// ignore makes keys known that are of no interest.
func (o *object) ignore(names ...string) {
	for _, name := range names {
		delete(o.fields, name)
	}
}

// finish is the first error, or names the first key that is unknown.
func (o *object) finish() error {
	if o.err != nil {
		return o.err
	}
	for _, name := range slices.Sorted(maps.Keys(o.fields)) {
		return types.NewError(types.ErrUnsupportedField, fmt.Sprintf("unknown key %s: %s", o.key(name), excerpt(o.fields[name])), "")
	}
	return nil
}

// excerpt is a value on one line of a message.
func excerpt(raw []byte) string {
	const enough = 80
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		compact.Reset()
		compact.Write(bytes.Join(bytes.Fields(raw), []byte(" ")))
	}
	if compact.Len() > enough {
		return compact.String()[:enough] + "..."
	}
	return compact.String()
}

// invalid is an error of the configuration.
func invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}
