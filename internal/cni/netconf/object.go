// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
)

// object reads a JSON object key by key. A key that nobody read by the time of finish is
// unknown. The first error is kept; later keys are still read.
type object struct {
	path   string // path of the object in the configuration, empty for the root
	fields map[string]json.RawMessage
	err    error
}

// parseObject splits an object into its keys.
func parseObject(path string, data []byte) *object {
	o := &object{path: path}
	if err := json.Unmarshal(data, &o.fields); err != nil || o.fields == nil {
		o.err = types.NewError(types.ErrDecodingFailure, o.message("want a JSON object, got %s", excerpt(data)), "")
	}
	return o
}

// message formats an error text that names the object.
func (o *object) message(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	if o.path == "" {
		return text
	}
	return o.path + ": " + text
}

// key returns the path of a key in the configuration.
func (o *object) key(name string) string {
	if o.path == "" {
		return name
	}
	return o.path + "." + name
}

// take removes a key and returns its value. null counts as absent.
func (o *object) take(name string) (json.RawMessage, bool) {
	raw, ok := o.fields[name]
	delete(o.fields, name)
	if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return nil, false
	}
	return raw, ok
}

// read decodes the value of a key, if present. want describes the type for the error.
func (o *object) read(name, want string, into any) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	if err := json.Unmarshal(raw, into); err != nil && o.err == nil {
		o.err = Invalidf("%s: want %s, got %s", o.key(name), want, excerpt(raw))
	}
}

// networkName returns a name if it is a valid one, and otherwise an empty one: it becomes a part of paths. The library
// that checks the name of the protocol's messages takes it from any of its keys "name", "Name" and "NAME".
func (o *object) networkName(name string) string {
	if err := utils.ValidateNetworkName(name); err != nil {
		if o.err == nil {
			o.err = Invalidf("name: %s %q", err.Msg, name)
		}
		return ""
	}
	return name
}

// readWith decodes the value of a key, if present, with a parser.
func readWith[T any](o *object, name string, into *T, parse func(json.RawMessage) (T, error)) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	var err error
	if *into, err = parse(raw); o.err == nil {
		o.err = err
	}
}

// readEach calls fn with each element of an array of objects, if present, which may have at most limit elements.
func (o *object) readEach(name string, limit int, fn func(*object)) {
	var elements []json.RawMessage
	o.read(name, "an array of objects", &elements)
	if len(elements) > limit {
		if o.err == nil {
			o.err = Invalidf("%s: %d elements, want %d at most", o.key(name), len(elements), limit)
		}
		return
	}
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

// foldCase accepts the named keys in any letter case. containerd encodes capability
// arguments from Go structs without JSON names.
func (o *object) foldCase(names ...string) {
	for _, name := range names {
		for key, raw := range o.fields {
			if _, taken := o.fields[name]; !taken && strings.EqualFold(key, name) {
				delete(o.fields, key)
				o.fields[name] = raw
			}
		}
	}
}

// ignore accepts keys without reading them.
func (o *object) ignore(names ...string) {
	for _, name := range names {
		delete(o.fields, name)
	}
}

// finish returns the first error, or an error that names the first unknown key.
func (o *object) finish() error {
	if o.err != nil {
		return o.err
	}
	for _, name := range slices.Sorted(maps.Keys(o.fields)) {
		return types.NewError(types.ErrUnsupportedField, fmt.Sprintf("unknown key %s: %s", o.key(name),
			excerpt(o.fields[name])), "")
	}
	return nil
}

// excerpt shortens a JSON value to one line of at most 80 bytes.
func excerpt(raw []byte) string {
	const limit = 80
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		compact.Reset()
		compact.Write(bytes.Join(bytes.Fields(raw), []byte(" ")))
	}
	if compact.Len() > limit {
		return compact.String()[:limit] + "..."
	}
	return compact.String()
}

// Invalidf returns an error with the code of an invalid network configuration. The text begins with the key.
func Invalidf(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}
