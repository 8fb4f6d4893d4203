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
)

// schemaError reports a file with a schema that this package cannot read; 0 if the file lacks one.
func schemaError(schema int) error {
	if schema == 0 {
		return errors.New("no schema number: not a result file")
	}
	return fmt.Errorf("unknown schema %d (this program reads %d): use the version that wrote the file", schema, Schema)
}

// Read reads and checks the result file at path, of at most 64 MiB. Errors of the operating system match with
// errors.Is (os.ErrNotExist).
func Read(path string) (f File, err error) {
	defer func() {
		if err != nil {
			f, err = File{}, fmt.Errorf("read results %s: %w", path, err)
		}
	}()
	file, err := os.Open(path)
	if err != nil {
		return f, reason(err)
	}
	defer file.Close()
	data := bytes.NewBuffer(nil)
	if info, err := file.Stat(); err == nil {
		data.Grow(int(min(info.Size(), maxBytes)) + bytes.MinRead)
	}
	if _, err := data.ReadFrom(io.LimitReader(file, maxBytes+1)); err != nil {
		return f, reason(err)
	}
	if data.Len() > maxBytes {
		return f, fmt.Errorf("more than %d MiB: not a result file", maxBytes>>20)
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
