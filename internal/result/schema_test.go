// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"mustang/internal/testkit"
)

const schemaPath = "../../docs/results.schema.json"

// object is a JSON object.
type object map[string]any

// source is the content of the package's source about its types.
type source struct {
	docs  map[string]string   // of "Type" and "Type.Field"
	enums map[string][]string // values of "Type.Field"
}

// parseSource reads the comments and the groups of constants, whose comment names the field
// that they are the values of.
func parseSource(t *testing.T) source {
	t.Helper()
	s := source{map[string]string{}, map[string][]string{}}
	paths := testkit.Must(filepath.Glob("*.go"))(t)
	field := regexp.MustCompile(`of (?:a )?\[([A-Za-z.]+)\]`)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file := testkit.Must(parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments))(t)
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			of := field.FindStringSubmatch(group.Doc.Text())
			for _, spec := range group.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					s.addType(spec, group.Doc)
				case *ast.ValueSpec:
					if lit, ok := spec.Values[0].(*ast.BasicLit); ok && group.Tok == token.CONST && of != nil &&
						lit.Kind == token.STRING {
						value := testkit.Must(strconv.Unquote(lit.Value))(t)
						name := strings.Replace(of[1], "Series", "Series.Color", 1)
						s.enums[name] = append(s.enums[name], value)
					}
				}
			}
		}
	}
	return s
}

func (s source) addType(spec *ast.TypeSpec, doc *ast.CommentGroup) {
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	s.docs[spec.Name.Name] = sentence(doc.Text())
	for i, f := range structure.Fields.List {
		text := f.Doc.Text()
		if f.Comment != nil {
			text = strings.ToUpper(f.Comment.Text()[:1]) + f.Comment.Text()[1:]
		} else if text == "" && i > 0 { // documented with the field before
			text = structure.Fields.List[i-1].Doc.Text()
		}
		for _, name := range f.Names {
			s.docs[spec.Name.Name+"."+name.Name] = sentence(text)
		}
	}
}

// sentence puts a comment on a line, without the brackets of links.
func sentence(comment string) string {
	return regexp.MustCompile(`\[([A-Za-z.]+)\]`).ReplaceAllString(strings.Join(strings.Fields(comment), " "), "$1")
}

// schema returns the schema of a type; defs gets the schemas of the structs in it.
func (s source) schema(typ reflect.Type, defs object) object {
	switch typ.Kind() {
	case reflect.Pointer:
		return s.schema(typ.Elem(), defs)
	case reflect.Struct:
		if typ == reflect.TypeFor[time.Time]() {
			return object{"type": "string", "format": "date-time"}
		}
		if defs[typ.Name()] == nil {
			defs[typ.Name()] = true // in case it holds itself
			defs[typ.Name()] = s.structSchema(typ, defs)
		}
		return object{"$ref": "#/$defs/" + typ.Name()}
	case reflect.Slice:
		return object{"type": "array", "items": s.schema(typ.Elem(), defs)}
	case reflect.Array:
		return object{"type": "array", "items": s.schema(typ.Elem(), defs), "minItems": typ.Len(), "maxItems": typ.Len()}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.schema(typ.Elem(), defs)}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number", "minimum": -maxFigure, "maximum": maxFigure}
	case reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	}
	return object{"type": "integer"}
}

func (s source) structSchema(typ reflect.Type, defs object) object {
	properties, required := object{}, []string{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		property := s.schema(f.Type, defs)
		full := typ.Name() + "." + f.Name
		if doc := s.docs[full]; doc != "" {
			property["description"] = doc
		}
		if values := s.enums[full]; values != nil {
			if full == "Row.Unit" {
				values = append(slices.Clone(values), "") // of a row without samples
			}
			if f.Type.Kind() == reflect.Slice {
				property["items"] = object{"type": "string", "enum": values}
			} else {
				property["enum"] = values
			}
		}
		if options == "" {
			required = append(required, name)
			if f.Type.Kind() == reflect.Pointer {
				property["type"] = []string{property["type"].(string), "null"}
			}
		}
		properties[name] = property
	}
	return object{"type": "object", "description": s.docs[typ.Name()], "properties": properties, "required": required}
}

func generate(t *testing.T) []byte {
	t.Helper()
	defs := object{}
	top := parseSource(t)
	top.schema(reflect.TypeFor[File](), defs)
	file := defs["File"].(object)
	delete(defs, "File")
	file["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	file["title"] = "Mustang's results.json"
	file["properties"].(object)["schema"].(object)["const"] = Schema
	file["$defs"] = defs
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	testkit.Succeed(t, encoder.Encode(file))
	return out.Bytes()
}

// TestSchemaDescribesTypes compares docs/results.schema.json with the types.
func TestSchemaDescribesTypes(t *testing.T) {
	want := generate(t)
	if *update {
		testkit.Succeed(t, os.WriteFile(schemaPath, want, 0o600))
	}
	got := testkit.Must(os.ReadFile(schemaPath))(t)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs from the types; go test -run Schema -update writes it (-want +got):\n%s", schemaPath, diff)
	}
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	return testkit.Must(compiler.Compile(schemaPath))(t)
}

// TestSchemaAcceptsSamples validates the sample files of all packages, as they are and as they are written.
func TestSchemaAcceptsSamples(t *testing.T) {
	schema := compileSchema(t)
	paths, err := filepath.Glob("../report/testdata/*.json")
	testkit.Require(t, err == nil && len(paths) >= 3, "%q, %v", paths, err)
	for _, path := range append(paths, "testdata/golden.json") {
		f := testkit.Must(Read(path))(t)
		text := testkit.Must(Marshal(f))(t)
		value := testkit.Must(jsonschema.UnmarshalJSON(bytes.NewReader(text)))(t)
		err = schema.Validate(value)
		testkit.Check(t, err == nil, "%s: %v", path, err)
	}
}

// TestSchemaRefuses changes the golden file: the schema refuses other types.
func TestSchemaRefuses(t *testing.T) {
	golden := testkit.Must(os.ReadFile("testdata/golden.json"))(t)
	schema := compileSchema(t)
	for _, change := range [][2]string{
		{`"schema": 2`, `"schema": 1`}, {`"schema": 2,`, ``}, {`"status": "ok"`, `"status": "fine"`},
		{`"median": 12.5`, `"median": "12.5"`},
		{`"median": 12.5`, `"median": 1e16`}, {`"seed": `, `"seed": -`}, {`"workload": "tcp_stream"`, `"workload": "http"`},
		{`"started": "2026-01-02T03:04:05Z"`, `"started": "yesterday"`}, {`"quick": true`, `"quick": 1`},
		{`"unit": "transactions/s"`, `"unit": "furlongs"`},
		{`"layout": "matrix"`, `"layout": "cube"`}, {`"rows": [`, `"lines": [`}, {`"color": "slate"`, `"color": "ochre"`},
	} {
		text := strings.Replace(string(golden), change[0], change[1], 1)
		testkit.Require(t, text != string(golden), "%s is not in the golden file", change[0])
		value := testkit.Must(jsonschema.UnmarshalJSON(strings.NewReader(text)))(t)
		testkit.Check(t, schema.Validate(value) != nil, "%s is accepted", change[1])
	}
}
