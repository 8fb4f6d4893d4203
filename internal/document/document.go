// SPDX-License-Identifier: Apache-2.0

// Package document reads YAML or JSON documents with Kubernetes objects. An error names document, object
// and field.
package document

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"regexp"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// maxBytes is the limit of a file. 100,000 services of ten backends take 40 MiB, a Kubernetes object some 2 KiB.
const maxBytes = 64 << 20

// Limits of YAML. The library needs up to 520 bytes for each item of a list or a mapping, 1.04 GB in total. It compares
// all keys of a mapping with each other: 660,000 keys in mappings of 1,000 take 13 s.
const maxItems, maxKeys = 2_000_000, 1000

// maxJSONItems is the limit of JSON. 100,000 services of ten backends have 4,200,000; 6,000,000 empty rules take 1 GB.
const maxJSONItems = 6_000_000

func readAll(r io.Reader, asYAML bool) (data []byte, isJSON bool, err error) {
	data, err = io.ReadAll(io.LimitReader(r, maxBytes+1))
	isJSON = !asYAML && jsonObject.Match(data)
	switch ofPath := (*fs.PathError)(nil); {
	case errors.As(err, &ofPath):
		err = ofPath.Err // the caller names the file
	case err != nil:
	case len(data) > maxBytes:
		err = fmt.Errorf("it is larger than %d MiB", maxBytes>>20)
	case isJSON && countItems(data, ",", "[", "{") > maxJSONItems:
		err = fmt.Errorf("it is JSON of more than %d items", maxJSONItems)
	case !isJSON && countItems(data, "\n", ",", "[", "{", "- ", "? ", ": ", ":,") > maxItems:
		err = fmt.Errorf("it is YAML of more than %d items", maxItems)
	}
	return data, isJSON, err
}

// jsonObject matches the beginning of a JSON object. Keys of a YAML object in braces need no quotes.
var jsonObject = regexp.MustCompile(`^\s*\{\s*(["}]|$)`)

// countItems returns an upper bound of the number of items: each item begins after one of a few texts.
func countItems(data []byte, begins ...string) (n int) {
	for _, begin := range begins {
		n += bytes.Count(data, []byte(begin))
	}
	return n
}

// Each calls a function for each document, as JSON that the function must copy to keep, until it returns an error. A
// file without a document is an error. Errors begin with the document's number; empty documents count.
func Each(r io.Reader, add func(where string, data jsontext.Value) error) error {
	data, isJSON, err := readAll(r, false)
	if err != nil {
		return err
	}
	fromYAML, fromJSON := yaml.NewDecoder(bytes.NewReader(data)), jsontext.NewDecoder(bytes.NewBuffer(data))
	next := func() (jsontext.Value, error) { return decodeYAML(fromYAML) }
	if isJSON {
		next = func() (jsontext.Value, error) {
			value, err := fromJSON.ReadValue()
			return value, Explain(err)
		}
	}
	empty := true
	for number := 1; ; number++ {
		where := fmt.Sprintf("document %d", number)
		data, err := next()
		switch {
		case errors.Is(err, io.EOF) && empty:
			return errors.New("it is empty")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", where, err)
		case data.Kind() == 'n':
			continue
		case data.Kind() != '{':
			return fmt.Errorf("%s: want an object, got %s", where, kindName(data.Kind()))
		}
		empty = false
		if err := add(where, data); err != nil {
			return err
		}
	}
}

func decodeYAML(decoder *yaml.Decoder) (jsontext.Value, error) {
	var root yaml.Node
	if err := decoder.Decode(&root); err != nil {
		return nil, err
	}
	if err := checkKeys(&root); err != nil {
		return nil, err
	}
	return toJSON(&root)
}

// LineError is an error about a line of a [Source].
type LineError struct {
	Line int // the first is 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// checkKeys returns a *LineError for the first mapping with more than maxKeys keys, or a duplicate key.
func checkKeys(n *yaml.Node) error {
	if n.Kind == yaml.MappingNode {
		if keys := len(n.Content) / 2; keys > maxKeys {
			return &LineError{n.Line, fmt.Errorf("%d keys: a mapping has at most %d", keys, maxKeys)}
		}
		lines := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if first, ok := lines[key.Value]; ok && key.Kind == yaml.ScalarNode {
				return &LineError{key.Line, fmt.Errorf("%q is there already, in line %d", key.Value, first)}
			}
			lines[key.Value] = key.Line
		}
	}
	for _, child := range n.Content {
		if err := checkKeys(child); err != nil {
			return err
		}
	}
	return nil
}

func toJSON(node *yaml.Node) (jsontext.Value, error) {
	var value any
	if err := node.Decode(&value); err != nil {
		return nil, err
	}
	out, err := json.Marshal(value)
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		err = atField(semantic.JSONPointer, errors.New("a key or a value cannot be written as JSON"))
	}
	return out, err
}

// Decode decodes JSON. The error begins with the field: a [*FieldError].
func Decode(data jsontext.Value, into any, options ...json.Options) error {
	return Explain(json.Unmarshal(data, into, options...))
}

// Explain puts the field before an error of package json, and leaves out the names of Go types.
func Explain(err error) error {
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	var field *FieldError
	var pointer jsontext.Pointer
	switch {
	case errors.As(err, &syntactic):
		pointer, err = syntactic.JSONPointer, syntactic.Err
	case errors.As(err, &semantic):
		pointer = semantic.JSONPointer
		switch {
		case errors.Is(err, json.ErrUnknownName):
			err = errors.New("unknown field")
		case errors.As(semantic.Err, &field): // of a value that decodes itself
			pointer, err = pointer+field.Pointer, field.Err
		case semantic.Err != nil:
			err = semantic.Err
		case semantic.GoType != nil:
			err = fmt.Errorf("want %s, got %s", typeName(semantic.GoType), kindName(semantic.JSONKind))
		}
	}
	return atField(pointer, err)
}

func atField(pointer jsontext.Pointer, err error) error {
	if pointer == "" || err == nil {
		return err
	}
	return &FieldError{pointer, err}
}

// FieldError is an error about a field of a document.
type FieldError struct {
	Pointer jsontext.Pointer
	Err     error
}

func (e *FieldError) Error() string { return Field(e.Pointer) + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

// Field turns a JSON pointer into the form that people write: "/spec/ports/0/port" is "spec.ports[0].port".
func Field(pointer jsontext.Pointer) string {
	var b strings.Builder
	for token := range pointer.Tokens() {
		switch {
		case token != "" && strings.Trim(token, "0123456789") == "":
			fmt.Fprintf(&b, "[%s]", token)
		case b.Len() == 0:
			b.WriteString(token)
		default:
			b.WriteString("." + token)
		}
	}
	return b.String()
}

func kindName(k jsontext.Kind) string {
	names := map[jsontext.Kind]string{
		'n': "null", 't': "a boolean", 'f': "a boolean", '"': "a string", '0': "a number", '[': "a list", '{': "an object",
	}
	return cmp.Or(names[k], "something else")
}

func typeName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	names := map[reflect.Kind]string{
		reflect.String: "a string", reflect.Bool: "a boolean", reflect.Slice: "a list", reflect.Int: "a whole number",
		reflect.Uint16: "a whole number", reflect.Uint32: "a whole number",
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return cmp.Or(names[t.Kind()], "a string")
	}
	return cmp.Or(names[t.Kind()], "an object")
}

// OneLine replaces line breaks, and leaves out the middle of a long line: names and values can contain anything.
func OneLine(s string) string {
	const most = 1000 // bytes
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most/2], "") + " ... " + strings.ToValidUTF8(s[len(s)-most/2:], "")
	}
	return s
}

// Object holds the common fields of Kubernetes objects.
type Object struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   Metadata `json:"metadata"`
}

// Metadata identifies an object of a kind.
type Metadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
	UID       string            `json:"uid"`
	Created   string            `json:"creationTimestamp"` // in RFC 3339: a later time is greater
	Version   string            `json:"resourceVersion"`   // changes with each change of the object
}

// EachObject calls a function for an object, or for each item of a list of objects, until it returns an error.
func EachObject(where string, o Object, data jsontext.Value, add func(string, Object, jsontext.Value) error) error {
	kind, isList := strings.CutSuffix(o.Kind, "List")
	if !isList {
		return add(where, o, data)
	}
	var list struct {
		Items []jsontext.Value `json:"items"`
	}
	if err := Decode(data, &list); err != nil {
		return fmt.Errorf("%s: %s: %w", where, o.Kind, err)
	}
	for i, item := range list.Items {
		where := fmt.Sprintf("%s: items[%d]", where, i)
		of := Object{}
		if err := Decode(item, &of); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		if of.Kind == "" && kind != "" { // the API leaves it out in a ServiceList
			of.Kind, of.APIVersion = kind, o.APIVersion
		}
		if err := EachObject(where, of, item, add); err != nil { // a list may have lists
			return err
		}
	}
	return nil
}
