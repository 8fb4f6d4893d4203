// SPDX-License-Identifier: Apache-2.0

package layout

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

	"mustang/internal/testkit"
)

const maxWords = 25 // the length of the longest sentence in a string, in words

var (
	// hardPhrases stand for a noun, a negation or a verb that is easier to read.
	hardPhrases = regexp.MustCompile(
		`(?i)\b(what there is|that of|those of|of which|whoever|is who|has no|have no|no room|nobody|` +
			`amiss|besides|heard|heeds?|in vain|lest|likewise|mends?|mended|room for|says? so|so many|spoilt|thereof|told|` +
			`whence)\b|\b[^ ]+ is no \b|\bare no \b`)
	// plainPhrases contain words of hardPhrases, and are easy to read.
	plainPhrases = regexp.MustCompile(`(?i)\bthere (is|are) no\b|\b(is|are) no longer\b`)
	sentenceEnd  = regexp.MustCompile(`[.;:!?](\s|$)|\n\s*\n`)
	dictionary   = regexp.MustCompile("(?m)^\\| `([^|]*)` \\| `[^|]*` \\|$")
)

// TestWordsOfStrings reads the strings of errors, log lines and help: their sentences are short, and without phrases
// that have to be read twice. Examples of help, which are commands, and rules of iptables are not sentences.
func TestWordsOfStrings(t *testing.T) {
	eachNode(t, func(at token.Position, n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(literal.Value)
		testkit.Succeed(t, err)
		if strings.HasPrefix(text, "  mustang ") || strings.Contains(at.Filename, "/lab/proxy") {
			return true
		}
		for _, sentence := range sentenceEnd.Split(text, -1) {
			words := strings.Fields(sentence)
			testkit.Check(t, len(words) <= maxWords,
				"%s: a sentence of %d words, at most %d: %s", at, len(words), maxWords, strings.Join(words, " "))
			hard := hardPhrases.FindString(plainPhrases.ReplaceAllString(sentence, ""))
			testkit.Check(t, hard == "", "%s: %q in: %s", at, strings.TrimSpace(hard), strings.Join(words, " "))
		}
		return true
	})
}

// TestIdentifiersAreTerms compares the names of packages, types, functions and constants with the dictionary in
// CONTRIBUTING.md.
func TestIdentifiersAreTerms(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	testkit.Succeed(t, err)
	banned := map[string]bool{}
	for _, row := range dictionary.FindAllStringSubmatch(string(page), -1) {
		for name := range strings.SplitSeq(row[1], "`, `") {
			banned[strings.ToLower(name)] = true
		}
	}
	testkit.Require(t, len(banned) >= 10, "CONTRIBUTING.md has %d words in its dictionary", len(banned))
	check := func(at token.Position, name *ast.Ident) {
		if name != nil && banned[strings.ToLower(name.Name)] {
			t.Errorf("%s: %q is in the dictionary of CONTRIBUTING.md, with a better term", at, name.Name)
		}
	}
	eachNode(t, func(at token.Position, n ast.Node) bool {
		switch n := n.(type) {
		case *ast.File:
			check(at, n.Name)
		case *ast.FuncDecl:
			check(at, n.Name)
		case *ast.TypeSpec:
			check(at, n.Name)
		}
		return true
	})
}

// eachNode calls fn for the nodes of all files that people write, but tests.
func eachNode(t *testing.T, fn func(at token.Position, n ast.Node) bool) {
	t.Helper()
	for _, s := range sources(t, "internal", "cmd") {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, filepath.Join(root, s.path), nil, 0)
		testkit.Succeed(t, err)
		ast.Inspect(file, func(n ast.Node) bool { return n == nil || fn(fset.Position(n.Pos()), n) })
	}
}

// TestPromisesHaveTests reads the table of the services' promises. Each row names tests that exist. If a row claims
// that real sockets use the promise in a link mode, the file of one of its tests builds pods of that mode.
func TestPromisesHaveTests(t *testing.T) {
	text, err := os.ReadFile(root + "/test/promises/services.md")
	testkit.Succeed(t, err)
	_, table, _ := strings.Cut(string(text), "\n## What services promise\n")
	files, rows := testFiles(t), 0
	modes := []string{"veth", "bridge", "macvlan", "ipvlan", "netkit"}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4+len(modes) || !strings.Contains(cells[3+len(modes)], "`") {
			continue
		}
		rows++
		promise, built := strings.TrimSpace(cells[0]), ""
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(cells[3+len(modes)], -1) {
			testkit.Check(t, files[name] != "", "%s: there is no test %s", promise, name)
			built += files[name]
		}
		for i, mode := range modes {
			switch cell := strings.TrimSpace(cells[1+i]); {
			case !slices.Contains([]string{"yes", "any", "–"}, cell):
				t.Errorf("%s, %s: %q, want yes, any or –", promise, mode, cell)
			case cell == "yes" && !regexp.MustCompile(`uplinkCases\(\)|onEachLink\(|on(Links|Pods)\(t, ("",|"[^"]*\b`+mode+`)|"`+
				mode).MatchString(built) &&
				!(mode == "veth" && strings.Contains(built, "routed(t)")):
				t.Errorf("%s: no test that it names builds pods of mode %s", promise, mode)
			}
		}
	}
	testkit.Check(t, rows >= 25, "the table has %d rows", rows)
}

// TestSecurityHasTests reads which properties hold in which link mode, and the promises of the source guard. Each row
// names tests that exist, unless it has a dash instead.
func TestSecurityHasTests(t *testing.T) {
	files, rows := testFiles(t), 0
	for path, last := range map[string]string{"test/promises/security.md": "shown by", "docs/datapath.md": "test"} {
		text, err := os.ReadFile(root + "/" + path)
		testkit.Succeed(t, err)
		_, table, _ := strings.Cut(string(text), " "+last+" |\n")
		table, _, _ = strings.Cut(table, "\n\n")
		for line := range strings.Lines(table) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			promise, shown := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[len(cells)-1])
			if strings.HasPrefix(shown, "---") || shown == "–" {
				continue
			}
			rows++
			names := regexp.MustCompile(`\bTest\w+`).FindAllString(shown, -1)
			testkit.Check(t, len(names) != 0, "%s: %s: no test", path, promise)
			for _, name := range names {
				testkit.Check(t, files[name] != "", "%s: %s: there is no test %s", path, promise, name)
			}
		}
	}
	testkit.Check(t, rows >= 10, "the tables have %d rows", rows)
}

func testFiles(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			files[m[1]] += string(text)
		}
		return err
	})
	testkit.Succeed(t, err)
	return files
}
