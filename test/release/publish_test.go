// SPDX-License-Identifier: Apache-2.0

package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestPublish writes the tree for a repository elsewhere: each place that names the module, the image or a link follows
// the one variable, and Go builds the tree.
func TestPublish(t *testing.T) {
	testkit.NotInGuest(t)
	testkit.RequireTool(t, "git")
	publish, dir := testkit.Must(filepath.Abs("../../packaging/publish"))(t), filepath.Join(t.TempDir(), "tree")
	t.Setenv("REPOSITORY", "git.example.org/You/mustang")
	run(t, ".", publish, dir)
	for file, want := range map[string]string{
		"go.mod":                       "module git.example.org/You/mustang\n",
		"Makefile":                     "git.example.org/You/mustang/internal/version.stamp=",
		"packaging/chart/Chart.yaml":   "\nhome: https://git.example.org/You/mustang\n",
		"packaging/chart/values.yaml":  "\n  repository: git.example.org/you/mustang\n",
		"packaging/nfpm.yaml":          "\nhomepage: https://git.example.org/You/mustang\n",
		"deploy/mustang.yaml":          " git.example.org/you/mustang:0.1.0\n",
		"cmd/mustang/benchcluster.go":  `"git.example.org/you/mustang:`,
		".depguard.yaml":               "git.example.org/You/mustang/internal/",
		"cmd/mustang/benchcluster.go ": "git.example.org/You/mustang/internal/",
	} {
		text := testkit.Must(os.ReadFile(filepath.Join(dir, strings.TrimSpace(file))))(t)
		testkit.Check(t, strings.Contains(string(text), want), "%s lacks %q", file, want)
	}
	makefile := testkit.Must(os.ReadFile(filepath.Join(dir, "Makefile")))(t)
	testkit.Check(t, strings.Contains(string(makefile), "git.example.org/you/mustang:$("), "the image has another name")
	run(t, dir, "go", "build", "./internal/rtnl", "./internal/service/...")

	for _, bad := range []string{"", "mustang", "https://example.org/mustang", "example.org/a b", "example.org/$(id)",
		"x\nexample.org/a"} {
		t.Setenv("REPOSITORY", bad)
		none := filepath.Join(t.TempDir(), "tree")
		out, err := exec.Command(publish, none).CombinedOutput()
		testkit.Check(t, err != nil && strings.Contains(string(out), `REPOSITORY "`+bad+`": want HOST/PATH`), "%q: %v: %s",
			bad, err, out)
		_, err = os.Stat(none)
		testkit.Check(t, os.IsNotExist(err), "%q wrote a tree", bad)
	}
}
