// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"golang.org/x/sys/unix"
)

// Limits of the text of a file. A list of three bytes an entry decodes to structs that are a hundred times as large, so
// that the limits of lists would come too late.
const (
	maxBytes   = 64 << 20
	maxValues  = 4_000_000
	maxEntries = 200_000 // of all lists, numbers not counted
	maxDepth   = 100
)

// Read reads and checks the result file at path, of at most 64 MiB. Errors of the operating system match with
// errors.Is (os.ErrNotExist).
func Read(path string) (f File, err error) {
	defer func() {
		if err != nil {
			f, err = File{}, fmt.Errorf("read results %s: %w", path, reason(err))
		}
	}()
	file, err := os.Open(path)
	if err != nil {
		return f, err
	}
	defer file.Close()
	var data bytes.Buffer
	if info, err := file.Stat(); err == nil {
		data.Grow(int(min(info.Size(), maxBytes)) + bytes.MinRead)
	}
	if _, err := data.ReadFrom(io.LimitReader(file, maxBytes+1)); err != nil {
		return f, err
	}
	if err := scan(data.Bytes()).err(); err != nil {
		return f, err
	}
	// The schema comes first: fields of another schema may not decode.
	var head struct {
		Schema int `json:"schema"`
	}
	for _, into := range []any{&head, &f} {
		if err := json.Unmarshal(data.Bytes(), into); err != nil {
			return f, errors.New(clip(err.Error()))
		}
		if head.Schema != Schema {
			return f, schemaError(head.Schema)
		}
	}
	return f, f.Validate()
}

// reason returns the error of the system alone, without the name of the file.
func reason(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}

// Marshal checks f and returns it as indented JSON with a final newline. Required
// lists and maps are empty, never null. What [Read] would refuse is an error.
func Marshal(f File) ([]byte, error) {
	data, _, err := encode(f)
	return data, err
}

func encode(f File) (data []byte, size extent, err error) {
	if err := f.Validate(); err != nil {
		return nil, size, err
	}
	data, err = jsonv2.Marshal(f, jsonv2.Deterministic(true), jsonv1.OmitEmptyWithLegacySemantics(true),
		jsontext.WithIndent("  "))
	if err != nil {
		return nil, size, fmt.Errorf("encode results: %w", err)
	}
	size = scan(data)
	return append(data, '\n'), size, size.err()
}

// extent is how much memory a JSON text takes to decode.
type extent struct{ bytes, depth, values, entries, longest int }

func (e extent) err() error {
	var p faults
	_ = p.most("bytes", e.bytes, maxBytes) && p.most("levels", e.depth, maxDepth) &&
		p.most("values", e.values, maxValues) && p.most("entries of lists", e.entries, maxEntries) &&
		p.most("entries of a list", e.longest, MaxSamples)
	return p.err()
}

// filled returns how much of a reader's limits the text of a file takes: from 1 on, [Read] may refuse it.
func (e extent) filled() float64 {
	return max(float64(e.bytes)/maxBytes, float64(e.values)/maxValues, float64(e.entries)/maxEntries)
}

func scan(text []byte) extent {
	e := extent{bytes: len(text)}
	decoder := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true),
		jsontext.AllowInvalidUTF8(true))
	for e.depth <= maxDepth && e.values <= maxValues {
		token, err := decoder.ReadToken()
		if err != nil {
			break
		}
		depth := decoder.StackDepth()
		e.depth = max(e.depth, depth)
		switch token.Kind() {
		case ']', '}':
			continue
		case '[', '{':
			depth-- // of what holds it
		}
		kind, length := decoder.StackIndex(depth)
		switch {
		case kind == '[':
			e.longest = max(e.longest, int(length))
			if token.Kind() != '0' {
				e.entries++
			}
		case length%2 == 1: // a member's name
			continue
		}
		e.values++
	}
	return e
}
