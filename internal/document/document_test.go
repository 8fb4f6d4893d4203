// SPDX-License-Identifier: Apache-2.0

package document

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/testkit"
)

// endless is a file without an end, and counts the bytes read.
type endless struct {
	text string
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.text[i%len(e.text)]
	}
	e.read += len(p)
	return len(p), nil
}

// TestEndless reads endless files.
func TestEndless(t *testing.T) {
	for _, text := range []string{"\x00", "schema: 1\n", `{"schema": 1}` + "\n"} {
		file := &endless{text: text}
		if err := Each(file, nil); err == nil || !strings.Contains(err.Error(), "larger than 64 MiB") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want one line about the size", text, err)
		}
		testkit.Check(t, file.read <= maxBytes+1, "%q: %d bytes were read, want %d at most", text, file.read, maxBytes+1)
		file.read = 0
		if _, err := Single(file); err == nil || strings.Contains(err.Error(), "\n") || file.read > maxBytes+1 {
			t.Errorf("one document of %q: %v after %d bytes", text, err, file.read)
		}
	}
}

// TestYAMLLimits reads texts that would cost the library gigabytes or minutes.
func TestYAMLLimits(t *testing.T) {
	var keys strings.Builder
	for i := range maxKeys + 1 {
		fmt.Fprintf(&keys, "k%d: a\n", i)
	}
	for text, want := range map[string]string{
		"a: [" + strings.Repeat("a,", maxItems) + "]": "more than 2000000 items",
		keys.String(): "line 1: 1001 keys: a mapping has at most 1000",
	} {
		each := Each(strings.NewReader(text), nil)
		_, single := Single(strings.NewReader(text))
		for _, err := range []error{each, single} {
			testkit.Check(t, err != nil && strings.Contains(err.Error(), want), "%v, want %q", err, want)
		}
	}
}

// TestJSONLimit reads texts that decode to gigabytes.
func TestJSONLimit(t *testing.T) {
	err := Each(strings.NewReader(`{"a":[`+strings.Repeat("0,", maxJSONItems)+"0]}"), nil)
	want := "it is JSON of more than 6000000 items"
	testkit.Check(t, err != nil && err.Error() == want, "%v, want %q", err, want)
}

// TestKeys has the keys of a mapping in the order of the file, through an alias too.
func TestKeys(t *testing.T) {
	source, err := Single(strings.NewReader("a: &x {z: 1, b: 2, c: 3}\nd: *x\ne: [1]\n"))
	testkit.Succeed(t, err)
	for mapping, want := range map[jsontext.Pointer]string{"": "a d e", "/a": "z b c", "/d": "z b c", "/e": "", "/e/0": "",
		"/a/z": "", "/f/g": ""} {
		got := strings.Join(source.Keys(mapping), " ")
		testkit.Check(t, got == want, "%q: keys %q, want %q", mapping, got, want)
	}
}

// TestFlowForm reads documents of YAML that begin with a brace, as JSON documents do.
func TestFlowForm(t *testing.T) {
	for _, text := range []string{"{schema: 1, services: []}", "{ 'schema': 1, services: []}\n",
		`{"schema": 1, "services": []}`, "{schema: 1,\n services: []}\n---\n"} {
		documents := 0
		err := Each(strings.NewReader(text), func(_ string, data jsontext.Value) error {
			var into struct {
				Schema   int      `json:"schema"`
				Services []string `json:"services"`
			}
			documents++
			err := Decode(data, &into)
			testkit.Check(t, err == nil && into.Schema == 1, "%q: %+v, %v", text, into, err)
			return nil
		})
		testkit.Check(t, err == nil && documents == 1, "%q: %d documents, %v", text, documents, err)
	}
}
