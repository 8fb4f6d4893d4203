// SPDX-License-Identifier: Apache-2.0

package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	testkit.Require(t, err == nil, "%s %q: %v\n%s", name, args, err, out)
	return strings.TrimSuffix(string(out), "\n")
}

// TestVersion checks the version of a tree before the tag of its release, at it, after it, with a change, and without
// git. Debian must sort them in this order.
func TestVersion(t *testing.T) {
	testkit.RequireTool(t, "git")
	testkit.RequireTool(t, "dpkg")
	dir := t.TempDir()
	script := testkit.Must(os.ReadFile("../../packaging/version"))(t)
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		testkit.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	testkit.Succeed(t, os.Mkdir(filepath.Join(dir, "packaging"), 0o755))
	write("packaging/version", string(script), 0o755)
	write("CHANGELOG.md", "# Changelog\n\n## 0.2.0 (2026-12-01)\n\n- more\n\n## 0.1.0 (2026-11-24)\n", 0o644)
	version := func() string { return run(t, dir, "packaging/version") }
	got := version()
	testkit.Check(t, got == "0.2.0", "without git: %q", got)
	git := func(args ...string) {
		run(t, dir, "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org", "-c",
			"commit.gpgSign=false"}, args...)...)
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "one")
	versions := []string{version()}
	git("tag", "v0.2.0")
	versions = append(versions, version())
	git("commit", "-q", "--allow-empty", "-m", "two")
	versions = append(versions, version())
	write("CHANGELOG.md", "# Changelog\n\n## 0.2.0 (2026-12-01)\n", 0o644)
	versions = append(versions, version())
	const commit = `git\d{8}\.\d{6}\.[0-9a-f]{7,}`
	for i, want := range []string{`0\.2\.0~` + commit, `0\.2\.0`, `0\.2\.0\+` + commit, `0\.2\.0\+` + commit +
		`\.modified`} {
		testkit.Check(t, regexp.MustCompile("^"+want+"$").MatchString(versions[i]),
			"version %d is %q, want %s", i, versions[i], want)
		if i > 0 {
			run(t, dir, "dpkg", "--compare-versions", versions[i-1], "lt", versions[i])
		}
	}
}

// TestVersionOfChart holds the chart to the version of the change log.
func TestVersionOfChart(t *testing.T) {
	chart := testkit.Must(os.ReadFile("../../packaging/chart/Chart.yaml"))(t)
	changes := testkit.Must(os.ReadFile("../../CHANGELOG.md"))(t)
	released := regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$`).FindSubmatch(changes)
	testkit.Require(t, released != nil, "CHANGELOG.md has no version with a date")
	for _, line := range []string{"version: ", "appVersion: "} {
		testkit.Check(t, strings.Contains(string(chart), "\n"+line+string(released[1])+"\n"),
			"Chart.yaml lacks %s%s", line, released[1])
	}
}

// TestPackageWithoutGit expects that a tree without its history makes no packages, before anything is built: they
// would lack a date and a maintainer.
func TestPackageWithoutGit(t *testing.T) {
	testkit.RequireTool(t, "make")
	testkit.RequireTool(t, "git")
	dir := t.TempDir()
	makefile := testkit.Must(os.ReadFile("../../Makefile"))(t)
	testkit.Succeed(t, os.WriteFile(filepath.Join(dir, "Makefile"), makefile, 0o600))
	for _, target := range []string{"deb", "release"} {
		cmd := exec.Command("make", target)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "need the git repository") ||
			strings.Contains(string(out), "go build") {
			t.Errorf("make %s: %v\n%s", target, err, out)
		}
	}
}
