// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestPromisesHaveTests reads the table of the services' promises. Each row names tests that exist. If a row claims
// that real sockets use the promise in a link mode, the file of one of its tests builds pods of that mode.
func TestPromisesHaveTests(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/services.md")
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
	for path, last := range map[string]string{"security.md": "shown by", "datapath.md": "test"} {
		text, err := os.ReadFile(root + "/docs/" + path)
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
