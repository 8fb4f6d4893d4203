// SPDX-License-Identifier: Apache-2.0

package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// SchemaError says that a file has a layout that this package does not know.
type SchemaError struct {
	// Path is the file that was read, empty when there was none.
	Path string
	// Schema is the number that it carries, 0 when it carries none.
	Schema int
}

// Error implements error.
func (e *SchemaError) Error() string {
	name := e.Path
	if name == "" {
		name = "result file"
	}
	if e.Schema == 0 {
		return fmt.Sprintf("%s: no schema number: not a result file", name)
	}
	return fmt.Sprintf("%s: schema %d is not known, this program knows schema %d: use the version that wrote it",
		name, e.Schema, Schema)
}

// Read reads and checks the result file at path. A file of another layout
// gives a [*SchemaError]; what the operating system refuses can be matched
// with errors.Is (os.ErrNotExist).
func Read(path string) (File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("read results: %w", err)
	}
	// The number comes first: fields of another schema may not even decode.
	var head struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return File{}, fmt.Errorf("read results %s: %w", path, err)
	}
	if head.Schema != Schema {
		return File{}, &SchemaError{Path: path, Schema: head.Schema}
	}
	var f File
	if err := json.Unmarshal(data, &f); err != nil {
		return File{}, fmt.Errorf("read results %s: %w", path, err)
	}
	if err := f.Validate(); err != nil {
		return File{}, fmt.Errorf("read results %s: %w", path, err)
	}
	return f, nil
}

// Marshal checks f and returns it as indented JSON with a final newline. Lists
// and maps that are always there are written empty, never as null.
func Marshal(f File) ([]byte, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(filled(f), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode results: %w", err)
	}
	return append(data, '\n'), nil
}

// Write checks f and puts it at path in one step: a reader, or a run after a
// crash, finds the old file or the new one and never half of either. The file
// is readable by its owner only (mode 0600).
func Write(path string, f File) (err error) {
	data, err := Marshal(f)
	if err != nil {
		return fmt.Errorf("write results %s: %w", path, err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write results %s: %w", path, reason(err))
	}
	defer func() {
		if err != nil {
			_ = temp.Close()
			_ = os.Remove(temp.Name())
		}
	}()
	if _, err := temp.Write(data); err != nil {
		return fmt.Errorf("write results %s: %w", path, reason(err))
	}
	if err := temp.Sync(); err != nil {
		return fmt.Errorf("write results %s: %w", path, reason(err))
	}
	if err := temp.Close(); err != nil {
		return fmt.Errorf("write results %s: %w", path, reason(err))
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return fmt.Errorf("write results %s: %w", path, reason(err))
	}
	return nil
}

// reason is an error of a file without the file's name, which is that of one that
// is only there until it is complete.
func reason(err error) error {
	var ofPath *fs.PathError
	var ofLink *os.LinkError
	switch {
	case errors.As(err, &ofPath):
		return ofPath.Err
	case errors.As(err, &ofLink):
		return ofLink.Err
	}
	return err
}

// filled returns a copy of f in which no always-present list or map is nil.
func filled(f File) File {
	rows := make([]Row, len(f.Rows))
	copy(rows, f.Rows)
	for i := range rows {
		row := &rows[i]
		row.Samples = orEmpty(row.Samples)
		row.Evidence.Devices = orEmpty(row.Evidence.Devices)
		row.Evidence.ProgramRuns = orEmptyMap(row.Evidence.ProgramRuns)
	}
	f.Rows = rows
	comparisons := make([]Comparison, len(f.Run.Comparisons))
	copy(comparisons, f.Run.Comparisons)
	for i := range comparisons {
		comparisons[i].Ratios = orEmpty(comparisons[i].Ratios)
	}
	f.Run.Comparisons = comparisons
	f.Run.Versions = orEmptyMap(f.Run.Versions)
	f.Run.Settings = orEmptyMap(f.Run.Settings)
	f.Run.Offloads = orEmptyMap(f.Run.Offloads)
	f.Run.Pinning = orEmptyMap(f.Run.Pinning)
	return f
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func orEmptyMap[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}
