// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"mustang/internal/testkit"
)

const (
	root         = "../.."
	maxFileLines = 400
	maxColumns   = 120 // the length of a line; a tab is one column
	// These bound the whole, without generated code.
	maxLines, maxPackages, maxTests, maxMaps = 81_750, 64, 69_450, 29
	maxDocLines                              = 50 // the length of `go doc` of a package: one screen
)

// source is a Go file that people write.
type source struct {
	path, dir, pkg string
	lines          int
}

// TestCodeFitsItsLimits counts the whole: code below internal and cmd, its packages, tests there and below test, and
// BPF maps. It counts the lines of each file too.
func TestCodeFitsItsLimits(t *testing.T) {
	packages, code, tests := map[string]bool{}, 0, 0
	for _, s := range sources(t, "internal", "cmd", "test") {
		testkit.Check(t, s.lines <= maxFileLines,
			"%s has %d lines, at most %d make one subject", s.path, s.lines, maxFileLines)
		testkit.Check(t, !slices.Contains([]string{"util", "utils", "common", "types", "helpers", "misc", "base"}, s.pkg),
			"%s: package %q says nothing of its subject", s.path, s.pkg)
		switch {
		case strings.HasSuffix(s.path, "_test.go"):
			tests += s.lines
		case !strings.HasPrefix(s.dir, "test"):
			code += s.lines
			packages[s.dir] = true
		}
	}
	architecture, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	testkit.Succeed(t, err)
	_, table, _ := strings.Cut(string(architecture), "\n## Maps\n")
	table, _, _ = strings.Cut(table, "\n## ")
	maps := len(regexp.MustCompile("(?m)^\\| `").FindAllString(table, -1))
	for _, sum := range []struct {
		what           string
		have, min, max int
	}{
		{"lines of code", code, 50_000, maxLines}, {"packages", len(packages), 20, maxPackages},
		{"lines of tests", tests, 50_000, maxTests}, {"maps", maps, 10, maxMaps},
	} {
		t.Logf("%d %s", sum.have, sum.what)
		testkit.Check(t, sum.have <= sum.max && sum.have >= sum.min,
			"%d %s, want %d to %d", sum.have, sum.what, sum.min, sum.max)
	}
}

// TestLinesFit finds lines that are too long, other than by a string or an instruction of go generate.
func TestLinesFit(t *testing.T) {
	for _, s := range sources(t, "internal", "cmd", "test") {
		data, err := os.ReadFile(filepath.Join(root, s.path))
		testkit.Succeed(t, err)
		file := token.NewFileSet().AddFile(s.path, -1, len(data))
		var tokens scanner.Scanner
		tokens.Init(file, data, nil, scanner.ScanComments)
		for exempt := 0; ; {
			pos, kind, text := tokens.Scan()
			if kind == token.EOF {
				break
			}
			if kind == token.SEMICOLON {
				continue
			}
			if text == "" {
				text = kind.String()
			}
			line := file.Line(pos + token.Pos(len(text)))
			start := file.Offset(file.LineStart(line))
			columns := utf8.RuneCount(data[start : file.Offset(pos)+len(text)])
			switch {
			case columns <= maxColumns || strings.HasPrefix(text, "//go:") || line == exempt:
			case kind == token.STRING:
				exempt = line
			default:
				t.Errorf("%s:%d: %d columns, at most %d", s.path, line, columns, maxColumns)
			}
		}
	}
}

// TestPackageDocFitsOneScreen counts the lines that `go doc` prints of each package: its comment, and a line for each
// exported type, function and group of constants or variables.
func TestPackageDocFitsOneScreen(t *testing.T) {
	dirs := map[string]bool{}
	for _, s := range sources(t, "internal", "cmd") {
		if s.pkg != "main" && !strings.HasSuffix(s.path, "_test.go") {
			dirs[s.dir] = true
		}
	}
	for dir := range dirs {
		n := docLines(t, dir)
		testkit.Check(t, n <= maxDocLines, "go doc ./%s prints %d lines, a screen has %d", dir, n, maxDocLines)
	}
}

func docLines(t *testing.T, dir string) int {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	entries, err := os.ReadDir(filepath.Join(root, dir))
	testkit.Succeed(t, err)
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, filepath.Join(root, dir, name), nil, parser.ParseComments)
		testkit.Succeed(t, err)
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(fset, files, "mustang/"+dir)
	testkit.Succeed(t, err)
	n := 2 + strings.Count(p.Doc, "\n") + len(p.Consts) + len(p.Vars) + len(p.Funcs)
	for _, typ := range p.Types {
		n += 1 + len(typ.Consts) + len(typ.Vars) + len(typ.Funcs)
	}
	return n
}

// sources lists the Go files below the directories tops that people write, tests among them.
func sources(t *testing.T, tops ...string) []source {
	t.Helper()
	var all []source
	for _, top := range tops {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && entry.Name() == "testdata" {
				return fs.SkipDir
			}
			if !strings.HasSuffix(path, ".go") {
				return nil
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, data, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				return err
			}
			if ast.IsGenerated(file) {
				return nil
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			all = append(all, source{
				path: rel, dir: filepath.Dir(rel), pkg: file.Name.Name, lines: bytes.Count(data, []byte("\n")),
			})
			return nil
		})
		testkit.Succeed(t, err)
	}
	return all
}

// TestCallChainsExist looks up the files and functions of the call chains in docs/architecture.md.
func TestCallChainsExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	testkit.Succeed(t, err)
	_, section, found := strings.Cut(string(text), "\n## Five call chains\n")
	testkit.Require(t, found, "docs/architecture.md has no call chains")
	section, _, _ = strings.Cut(section, "\n## ")
	steps := regexp.MustCompile(`(?m)^    (\S+\.go) +(\S.*)$`).FindAllStringSubmatch(section, -1)
	testkit.Require(t, len(steps) >= 20, "found %d steps only", len(steps))
	for _, step := range steps {
		path := filepath.Join(root, step[1])
		if !strings.HasPrefix(step[1], "cmd/") {
			path = filepath.Join(root, "internal", step[1])
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		for name := range strings.SplitSeq(step[2], ", ") {
			name = name[strings.LastIndexByte(name, '.')+1:]
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + regexp.QuoteMeta(name) + `[\[(]`).Match(source) {
				t.Errorf("%s has no function %s", step[1], name)
			}
		}
	}
}
