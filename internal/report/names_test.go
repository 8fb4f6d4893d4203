// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// TestNoNames checks that no source of the report names a suite or a link mode: they come from the file.
func TestNoNames(t *testing.T) {
	var suiteNames, modes []string
	for _, suite := range suites.List() {
		suiteNames = append(suiteNames, suite.Name)
	}
	for _, mode := range podlink.Modes() {
		modes = append(modes, mode.Name())
	}
	word := regexp.MustCompile(`[a-z][a-z0-9-]*`)
	named := func(text string) bool {
		if slices.Contains(suiteNames, text) {
			return true
		}
		return slices.ContainsFunc(word.FindAllString(strings.ToLower(text), -1),
			func(w string) bool { return slices.Contains(modes, w) })
	}
	testkit.Require(t, named("latency") && !named("p99 latency") && named(`x == "veth"`), "the test knows no names")
	files := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
			return err
		}
		files++
		if filepath.Ext(path) != ".go" {
			data, err := os.ReadFile(path)
			testkit.Check(t, err != nil || !named(string(data)), "%s names a link mode", path)
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				testkit.Check(t, err == nil && !named(text), "%s: %s names a suite or a link mode", path, lit.Value)
			}
			return true
		})
		return nil
	})
	testkit.Check(t, err == nil && files >= 15, "%d files, %v", files, err)
}
