// SPDX-License-Identifier: Apache-2.0

package labfile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
)

type form struct {
	Name     string               `json:"name"`
	Hosts    map[string]*hostForm `json:"hosts"`
	Wires    []wireForm           `json:"wires"`
	Services []serviceForm        `json:"services"`
}

type hostForm struct {
	Pods     map[string]*podForm `json:"pods"`
	Datapath string              `json:"datapath"`
	Via      string              `json:"via"`
}

type podForm struct {
	Link    string `json:"link"`
	Address texts  `json:"address"`
}

type wireForm struct {
	Endpoints []string `json:"endpoints"`
	Rate      string   `json:"rate"`
	Delay     string   `json:"delay"`
}

type serviceForm struct {
	Name     string   `json:"name"`
	Host     string   `json:"host"`
	Address  texts    `json:"address"`
	Protocol string   `json:"protocol"`
	Backends []string `json:"backends"`
}

type texts []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *texts) UnmarshalJSON(data []byte) error {
	if jsontext.Value(data).Kind() == '"' {
		*t = make(texts, 1)
		return json.Unmarshal(data, &(*t)[0])
	}
	if err := json.Unmarshal(data, (*[]string)(t)); err != nil {
		return errors.New("want a string or a list of strings")
	}
	return nil
}

// reader turns a form into a Lab. It goes on after an error with whatever it has, and keeps the first one.
type reader struct {
	source *document.Source
	form   form
	lab    Lab
	owned  []owned
	places map[string]jsontext.Pointer
	err    error
}

func atLine(source *document.Source, file string, err error) error {
	line, text := 0, err.Error()
	if at := (*document.LineError)(nil); errors.As(err, &at) {
		line, text = at.Line, at.Err.Error()
	} else if field := (*document.FieldError)(nil); errors.As(err, &field) {
		line = source.Line(field.Pointer)
	}
	if line > 0 {
		file = fmt.Sprintf("%s:%d", file, line)
	}
	return fmt.Errorf("%s: %s", file, document.OneLine(text))
}

func at(tokens ...any) jsontext.Pointer {
	var p jsontext.Pointer
	for _, token := range tokens {
		p = p.AppendToken(fmt.Sprint(token))
	}
	return p
}

func (r *reader) fail(field jsontext.Pointer, format string, args ...any) {
	if r.err == nil {
		r.err = &document.FieldError{Pointer: field, Err: fmt.Errorf(format, args...)}
	}
}

func (r *reader) require(ok bool, field jsontext.Pointer, format string, args ...any) {
	if !ok {
		r.fail(field, format, args...)
	}
}

func (r *reader) check(field jsontext.Pointer, err error) {
	if err != nil {
		r.fail(field, "%w", err)
	}
}

func inOrder[T any](r *reader, mapping jsontext.Pointer, of map[string]T) []string {
	keys := r.source.Keys(mapping)
	return slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(slices.Index(keys, a)-slices.Index(keys, b), cmp.Compare(a, b))
	})
}
