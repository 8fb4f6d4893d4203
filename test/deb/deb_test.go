// SPDX-License-Identifier: Apache-2.0

package deb

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

const version = "1.2.3"

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	testkit.Require(t, err == nil, "%s %q: %v\n%s", name, args, err, out)
	return string(out)
}

func build(t *testing.T) string {
	t.Helper()
	testkit.RequireTool(t, "make")
	testkit.RequireTool(t, "dpkg-deb")
	dir := t.TempDir()
	run(t, "make", "-C", "../..", "deb", "BUILD="+dir, "VERSION="+version, "DEB_MAINTAINER=A Tester <tester@example.org>")
	return filepath.Join(dir, "mustang_"+version+"_amd64.deb")
}

// wanted are the package's files with their modes.
var wanted = map[string]string{
	"./etc/default/mustang-cni":                          "-rw-r--r--",
	"./lib/systemd/system/mustang-bpffs.service":         "-rw-r--r--",
	"./lib/systemd/system/mustang-cni.service":           "-rw-r--r--",
	"./lib/systemd/system/mustang-health.service":        "-rw-r--r--",
	"./lib/systemd/system/mustang-services.service":      "-rw-r--r--",
	"./usr/bin/mustang":                                  "-rwxr-xr-x",
	"./usr/lib/cni/mustang-cni":                          "-rwxr-xr-x",
	"./usr/share/bash-completion/completions/mustang":    "-rw-r--r--",
	"./usr/share/doc/mustang/CHANGELOG.md.gz":            "-rw-r--r--",
	"./usr/share/doc/mustang/README.md":                  "-rw-r--r--",
	"./usr/share/doc/mustang/THIRD-PARTY-LICENCES.gz":    "-rw-r--r--",
	"./usr/share/doc/mustang/changelog.gz":               "-rw-r--r--",
	"./usr/share/doc/mustang/copyright":                  "-rw-r--r--",
	"./usr/share/doc/mustang/docs/cni.md":                "-rw-r--r--",
	"./usr/share/doc/mustang/docs/cni.schema.json":       "-rw-r--r--",
	"./usr/share/doc/mustang/docs/reference/cni.md":      "-rw-r--r--",
	"./usr/share/doc/mustang/docs/services.md":           "-rw-r--r--",
	"./usr/share/doc/mustang/docs/services.schema.json":  "-rw-r--r--",
	"./usr/share/fish/vendor_completions.d/mustang.fish": "-rw-r--r--",
	"./usr/share/lintian/overrides/mustang":              "-rw-r--r--",
	"./usr/share/man/man1/mustang.1.gz":                  "-rw-r--r--",
	"./usr/share/man/man1/mustang-svc-add.1.gz":          "-rw-r--r--",
	"./usr/share/zsh/vendor-completions/_mustang":        "-rw-r--r--",
}

// TestPackage checks the package, installs it into an empty root, uses its files, and removes it.
func TestPackage(t *testing.T) {
	testkit.RequireRoot(t) // dpkg needs it, in any root
	path := build(t)
	checkContent(t, path)
	testkit.RequireTool(t, "lintian")
	run(t, "lintian", "--fail-on", "error,warning", "--tag-display-limit", "0", path)
	root := t.TempDir()
	for _, dir := range []string{"info", "updates"} {
		testkit.Succeed(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg", dir), 0o755))
	}
	testkit.Succeed(t, os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o600))
	run(t, "dpkg", "--force-script-chrootless", "--root="+root, "--install", path)
	out := run(t, "dpkg", "--root="+root, "--verify", "mustang")
	testkit.Check(t, out == "", "after the installation: %s", out)
	for _, enabled := range []string{"etc/systemd", "opt", "etc/cni"} {
		_, err := os.Lstat(filepath.Join(root, enabled))
		testkit.Check(t, err != nil, "the installation made %s", enabled)
	}
	useProgram(t, root)
	readManual(t, root)
	verifyUnits(t, root)
	checkPage(t, filepath.Join(root, "usr/bin/mustang"))
	enable(t, root)
	run(t, "dpkg", "--force-script-chrootless", "--root="+root, "--purge", "mustang")
	var left []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !strings.HasPrefix(path, root+"/var/") {
			left = append(left, path)
		}
		return err
	})
	testkit.Check(t, err == nil && len(left) == 0, "left: %q, %v", left, err)
}

// enable makes the links of enabled units, as systemctl does.
func enable(t *testing.T, root string) {
	t.Helper()
	const wants = "etc/systemd/system/%s.wants"
	for unit, target := range map[string]string{
		"mustang-bpffs": "sysinit.target", "mustang-cni": "multi-user.target", "mustang-health": "multi-user.target",
		"mustang-services": "multi-user.target",
	} {
		dir := filepath.Join(root, fmt.Sprintf(wants, target))
		testkit.Succeed(t, os.MkdirAll(dir, 0o755))
		testkit.Succeed(t, os.Symlink("/lib/systemd/system/"+unit+".service", filepath.Join(dir, unit+".service")))
	}
}

// checkContent compares the package's fields and files with the expected ones.
func checkContent(t *testing.T, path string) {
	t.Helper()
	fields := run(t, "dpkg-deb", "--info", path)
	for _, want := range []string{
		"Package: mustang\n", "Version: " + version + "\n", "Architecture: amd64\n",
		"Maintainer: A Tester <tester@example.org>\n", "Section: net\n",
	} {
		testkit.Check(t, strings.Contains(fields, want), "%q lacks %q", fields, want)
	}
	for script, want := range map[string]bool{" preinst": false, " postinst": true, " prerm": true, " postrm": true,
		"Depends:": false} {
		testkit.Check(t, strings.Contains(fields, script) == want, "there is a %s: %t, want %t", script, !want, want)
	}
	have := map[string]string{}
	for line := range strings.Lines(run(t, "dpkg-deb", "--contents", path)) {
		if words := strings.Fields(line); len(words) == 6 && words[1] == "root/root" {
			have[words[5]] = words[0]
		} else {
			t.Errorf("content: %s", line)
		}
	}
	for name, mode := range wanted {
		testkit.Check(t, have[name] == mode, "%s has mode %q, want %q", name, have[name], mode)
	}
	for name := range have {
		if _, ok := wanted[name]; !ok && !strings.HasSuffix(name, "/") &&
			!strings.HasPrefix(name, "./usr/share/doc/mustang/docs/") &&
			!strings.HasPrefix(name, "./usr/share/man/man1/mustang-") {
			t.Errorf("the package has %s", name)
		}
	}
}

// useProgram installs the package's plugin for a runtime, and takes it away.
func useProgram(t *testing.T, root string) {
	t.Helper()
	place := t.TempDir()
	conf := filepath.Join(place, "net.d")
	mustang := filepath.Join(root, "usr/bin/mustang")
	out := run(t, mustang, "--version")
	testkit.Check(t, out == "mustang "+version+"\n", "the program is of version %q", out)
	run(t, "setpriv", append(confined(t, root, "mustang-cni"), mustang,
		"cni", "install", "--link", "auto", "--bin-dir", filepath.Join(place, "bin"), "--conf-dir", conf)...)
	copied, err := os.ReadFile(filepath.Join(place, "bin/mustang-cni"))
	testkit.Succeed(t, err)
	plugin := filepath.Join(root, "usr/lib/cni/mustang-cni")
	original, err := os.ReadFile(plugin)
	testkit.Check(t, err == nil && slices.Equal(copied, original), "the copy is another: %v", err)
	// Where the runtime looks into the package's own directory, uninstall leaves the package whole.
	run(t, mustang, "cni", "uninstall", "--bin-dir", filepath.Dir(plugin), "--conf-dir", conf)
	_, err = os.Stat(plugin)
	testkit.Check(t, err == nil, "%v", err)
	entries, err := os.ReadDir(conf)
	testkit.Check(t, err == nil && len(entries) == 0, "left: %v, %v", entries, err)
}

// readManual holds the package to a manual page for each command that the program's help names, and to completions that
// the shell takes.
func readManual(t *testing.T, root string) {
	t.Helper()
	help := run(t, filepath.Join(root, "usr/bin/mustang"), "help")
	commands := regexp.MustCompile("(?m)^  ([a-z]+)  +[A-Z]").FindAllStringSubmatch(help, -1)
	testkit.Require(t, len(commands) >= 15, "help: %s", help)
	for _, command := range commands {
		name := command[1]
		if name == "help" {
			continue
		}
		page := run(t, "gzip", "-dc", filepath.Join(root, "usr/share/man/man1/mustang-"+name+".1.gz"))
		if !strings.Contains(page, "mustang "+version) || !strings.Contains(page, ".SH SYNOPSIS\n\\fBmustang "+name) {
			t.Errorf("page of %s: %.300s", name, page)
		}
	}
	run(t, "bash", "-n", filepath.Join(root, "usr/share/bash-completion/completions/mustang"))
	if out := run(t, "gzip", "-dc", filepath.Join(root, "usr/share/doc/mustang/changelog.gz")); !strings.HasPrefix(out,
		"mustang ("+version+") unstable; ") {
		t.Errorf("changelog: %s", out)
	}
}

// confined returns the arguments of setpriv that limit a program to the capabilities of a unit.
func confined(t *testing.T, root, unit string) []string {
	t.Helper()
	testkit.RequireTool(t, "setpriv")
	text, err := os.ReadFile(filepath.Join(root, "lib/systemd/system", unit+".service"))
	testkit.Succeed(t, err)
	_, after, found := strings.Cut(string(text), "\nCapabilityBoundingSet=")
	line, _, _ := strings.Cut(after, "\n")
	testkit.Require(t, found && line != "", "%s has all capabilities", unit)
	set := "-all"
	for _, name := range strings.Fields(line) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	return []string{"--no-new-privs", "--inh-caps=-all", "--bounding-set=" + set}
}

// maxExposure is the most that a unit may score in systemd's rating, in tenths: 96 is a unit without any sandboxing.
const maxExposure = "65"

// verifyUnits has systemd read the units, with the program where it is now.
func verifyUnits(t *testing.T, root string) {
	t.Helper()
	testkit.RequireTool(t, "systemd-analyze")
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	units, err := filepath.Glob(filepath.Join(root, "lib/systemd/system/*"))
	testkit.Require(t, err == nil && len(units) == 4, "units %q, %v", units, err)
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		testkit.Succeed(t, err)
		there := strings.ReplaceAll(string(text), "/usr/bin/mustang", filepath.Join(root, "usr/bin/mustang"))
		moved := filepath.Join(dir, filepath.Base(unit))
		testkit.Succeed(t, os.WriteFile(moved, []byte(there), 0o600))
		args = append(args, moved)
		run(t, "systemd-analyze", "security", "--offline=true", "--threshold="+maxExposure, moved)
	}
	out := run(t, "systemd-analyze", args...)
	testkit.Check(t, !strings.Contains(out, "mustang"), "units: %s", out)
}

func checkPage(t *testing.T, mustang string) {
	t.Helper()
	results, err := os.ReadFile("../../internal/report/testdata/made-up.json")
	testkit.Succeed(t, err)
	dir := t.TempDir()
	testkit.Succeed(t, os.WriteFile(filepath.Join(dir, "results.json"), results, 0o600))
	run(t, mustang, "report", filepath.Join(dir, "results.json"), "-o", "html")
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	testkit.Succeed(t, err)
	script, err := os.ReadFile("../../internal/report/html/bundle/page.js")
	testkit.Succeed(t, err)
	testkit.Check(t, strings.Contains(string(page), "<script>"+string(script)+"</script>"),
		"the built mustang makes pages without their script")
}
