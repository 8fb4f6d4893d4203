// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// decoder decodes JSON objects into structs. It keeps the first error, and continues with later keys.
//
// The tags of a field: json is the key, want describes its type in errors, max is the limit of a list, and case:"any"
// accepts the key in any letter case. A struct without want is an object of its own, with its own unknown keys.
type decoder struct{ err error }

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// object decodes the object at a path into the struct that into points to. It refuses keys that the struct lacks.
func (d *decoder) object(path string, data []byte, into any) {
	keys := d.keys(path, data)
	d.fields(path, keys, reflect.ValueOf(into).Elem())
	d.unknown(path, keys)
}

func (d *decoder) keys(path string, data []byte) (keys map[string]json.RawMessage) {
	if err := json.Unmarshal(data, &keys); err != nil || keys == nil {
		text := join(path, ": ", fmt.Sprintf("want a JSON object, got %s", excerpt(data)))
		d.fail(types.NewError(types.ErrDecodingFailure, text, ""))
	}
	return keys
}

func (d *decoder) unknown(path string, keys map[string]json.RawMessage) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		text := fmt.Sprintf("unknown key %s: %s", join(path, ".", key), excerpt(keys[key]))
		d.fail(types.NewError(types.ErrUnsupportedField, text, ""))
	}
}

// fields decodes the keys of the fields of a struct, and deletes them from keys. null counts as absent.
func (d *decoder) fields(path string, keys map[string]json.RawMessage, into reflect.Value) {
	for i := range into.NumField() {
		field := into.Type().Field(i)
		key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous {
			d.fields(path, keys, reflect.Indirect(into.Field(i)))
		}
		if key == "" || key == "-" {
			continue
		}
		name := key
		for other := range keys {
			if field.Tag.Get("case") == "any" && strings.EqualFold(other, key) {
				name = other
			}
		}
		raw := keys[name]
		delete(keys, name)
		if text := string(bytes.TrimSpace(raw)); text != "" && text != "null" {
			d.value(join(path, ".", key), raw, into.Field(i), field.Tag)
		}
	}
}

func (d *decoder) value(path string, raw json.RawMessage, into reflect.Value, tag reflect.StructTag) {
	want, kind := tag.Get("want"), into.Kind()
	limit, _ := strconv.Atoi(tag.Get("max"))
	if want == "" && kind == reflect.Struct {
		d.object(path, raw, into.Addr().Interface())
		return
	}
	var elements []json.RawMessage
	target, nested := into.Addr().Interface(), want == "" && kind == reflect.Slice
	if nested {
		target, want = &elements, "an array of objects"
	} else if want == "" {
		want = map[reflect.Kind]string{reflect.String: "a string", reflect.Bool: "true or false"}[kind]
	}
	if err := json.Unmarshal(raw, target); err != nil {
		d.fail(Invalidf("%s: want %s, got %s", path, want, excerpt(raw)))
		return
	}
	if n := reflect.ValueOf(target).Elem(); limit > 0 && n.Len() > limit {
		d.fail(Invalidf("%s: %d elements, want %d at most", path, n.Len(), limit))
		return
	}
	if nested {
		into.Set(reflect.MakeSlice(into.Type(), len(elements), len(elements)))
	}
	for i, element := range elements {
		d.value(fmt.Sprintf("%s[%d]", path, i), element, into.Index(i), tag)
	}
}

func join(path, separator, rest string) string {
	if path == "" {
		return rest
	}
	return path + separator + rest
}

// excerpt shortens a JSON value to one line of at most 80 bytes.
func excerpt(raw []byte) string {
	const limit = 80
	text := string(bytes.Join(bytes.Fields(raw), []byte(" ")))
	var compact bytes.Buffer
	if json.Compact(&compact, raw) == nil {
		text = compact.String()
	}
	if len(text) > limit {
		return text[:limit] + "..."
	}
	return text
}

// Invalidf returns an error with the code of an invalid network configuration. The text begins with the key.
func Invalidf(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}
