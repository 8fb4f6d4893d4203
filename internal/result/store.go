// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// SchemaError reports a file whose schema this package does not know.
type SchemaError struct {
	// Path is the file; empty for a [File] in memory.
	Path string
	// Schema is the number in the file; 0 if it has none.
	Schema int
}

// Error implements error.
func (e *SchemaError) Error() string {
	name := cmp.Or(e.Path, "result file")
	if e.Schema == 0 {
		return fmt.Sprintf("%s: no schema number: not a result file", name)
	}
	return fmt.Sprintf("%s: unknown schema %d (this program reads %d): use the version that wrote the file", name,
		e.Schema, Schema)
}

// Read reads and checks the result file at path, of at most 64 MiB. A file of an
// unknown schema gives a [*SchemaError]; errors of the operating system match with
// errors.Is (os.ErrNotExist).
func Read(path string) (File, error) {
	data, err := readLimited(path)
	if err != nil {
		return File{}, fmt.Errorf("read results: %w", err)
	}
	if err := scan(data).err(); err != nil {
		return File{}, fmt.Errorf("read results %s: %w", path, err)
	}
	// The schema comes first: fields of another schema may not decode.
	var head struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return File{}, fmt.Errorf("read results %s: %s", path, clip(err.Error()))
	}
	if head.Schema != Schema {
		return File{}, &SchemaError{Path: path, Schema: head.Schema}
	}
	var f File
	if err := json.Unmarshal(data, &f); err != nil {
		return File{}, fmt.Errorf("read results %s: %s", path, clip(err.Error()))
	}
	if err := f.Validate(); err != nil {
		return File{}, fmt.Errorf("read results %s: %w", path, err)
	}
	return f, nil
}

// readLimited reads a file of at most maxBytes.
func readLimited(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size := 0
	if info, err := file.Stat(); err == nil {
		size = int(min(info.Size(), maxBytes+1))
	}
	data := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := data.ReadFrom(io.LimitReader(file, maxBytes+1)); err != nil {
		return nil, err
	}
	if data.Len() > maxBytes {
		return nil, fmt.Errorf("%s: more than %d MiB: not a result file", path, maxBytes>>20)
	}
	return data.Bytes(), nil
}

// Marshal checks f and returns it as indented JSON with a final newline. Required
// lists and maps are empty, never null. What [Read] would refuse is an error.
func Marshal(f File) ([]byte, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	data, err := jsonv2.Marshal(f, jsonv2.Deterministic(true), jsonv1.OmitEmptyWithLegacySemantics(true),
		jsontext.WithIndent("  "))
	if err != nil {
		return nil, fmt.Errorf("encode results: %w", err)
	}
	if err := scan(data).err(); err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}
