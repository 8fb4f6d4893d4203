// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"regexp"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// Source is a single document in YAML or JSON, with the positions of its fields.
type Source struct{ root *yaml.Node }

// Single reads a file of one document. A duplicate key of a mapping is a [*LineError].
func Single(r io.Reader) (*Source, error) {
	data, _, err := readAll(r, true)
	if err != nil {
		return nil, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var root, second yaml.Node
	switch err := decoder.Decode(&root); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("it is empty")
	case err != nil:
		return nil, atLine(err)
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, cmp.Or(err, errors.New("it has a second document"))
	}
	top := root.Content[0]
	if top.Tag == "!!null" {
		return nil, errors.New("it is empty")
	}
	if top.Kind != yaml.MappingNode {
		return nil, &LineError{top.Line, errors.New("want an object")}
	}
	return &Source{top}, checkKeys(top)
}

var syntaxError = regexp.MustCompile(`^yaml: line (\d+): (.*)$`) // matches the library's syntax errors

func atLine(err error) error {
	found := syntaxError.FindStringSubmatch(err.Error())
	if found == nil {
		return err
	}
	line, _ := strconv.Atoi(found[1])
	return &LineError{line, errors.New(found[2])}
}

// Decode decodes the document as [Decode] does.
func (s *Source) Decode(into any, options ...json.Options) error {
	data, err := toJSON(s.root)
	if err != nil {
		return err
	}
	return Decode(data, into, options...)
}

// Keys returns the keys of a mapping in the order of the file; none if it is not a mapping.
func (s *Source) Keys(mapping jsontext.Pointer) (keys []string) {
	_, n := s.find(mapping)
	for i := 0; n != nil && n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		keys = append(keys, n.Content[i].Value)
	}
	return keys
}

// Line returns the line of a field, or of its parent if the field is missing. The first one is 1.
func (s *Source) Line(field jsontext.Pointer) int {
	line, _ := s.find(field)
	return line
}

// find returns the line of a field, or of its parent if the field is missing, and the value; nil if missing.
func (s *Source) find(field jsontext.Pointer) (line int, n *yaml.Node) {
	line, n = s.root.Line, s.root
	for token := range field.Tokens() {
		key, value := -1, 0
		switch n.Kind {
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(token); err == nil && i < len(n.Content) {
				key, value = i, i
			}
		case yaml.MappingNode:
			for i := 0; i < len(n.Content) && key < 0; i += 2 {
				if n.Content[i].Value == token {
					key, value = i, i+1
				}
			}
		}
		if key < 0 {
			return line, nil
		}
		line, n = n.Content[key].Line, n.Content[value]
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
	}
	return line, n
}
