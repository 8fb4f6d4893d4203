// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// TestBadInput gives commands the input of testdata/badinput.txt, which they must refuse: with one line that names the
// culprit, the right exit code, and nothing pinned.
func TestBadInput(t *testing.T) {
	testkit.RequireRoot(t)
	bpffs := testkit.BPFFS(t)
	env := map[string]string{cli.EnvBPFRoot: filepath.Join(bpffs, "mustang"), envStateDir: filepath.Join(t.TempDir(), "s")}
	unescape := strings.NewReplacer(`\e`, "\x1b", `\n`, "\n")
	rows := strings.Split(readText(t, "testdata/badinput.txt"), "\n")
	for _, row := range rows {
		line, culprit, ok := strings.Cut(unescape.Replace(row), " => ")
		if !ok || strings.HasPrefix(row, "#") {
			continue // a comment
		}
		t.Run(line, func(t *testing.T) {
			words := strings.Fields(line)
			for i := range words {
				words[i] = strings.ReplaceAll(words[i], "|", " ")
			}
			code, stdout, stderr := command(t, env, words[1:]...)
			want := map[string]int{"1": exitFailed, "2": exitMisuse}[words[0]]
			testkit.Check(t, code == want, "exit code %d, want %d", code, want)
			testkit.Check(t, strings.Count(stderr, "\n") == 1 && strings.Contains(stderr, culprit),
				"stderr %q, want one line with %q", stderr, culprit)
			testkit.Check(t, stdout == "", "stdout %q, want nothing", stdout)
			entries, err := os.ReadDir(bpffs)
			testkit.Check(t, err == nil && len(entries) == 0, "pinned: %v, %v", entries, err)
		})
	}
	testkit.Check(t, len(rows) >= 200, "only %d rows", len(rows))
}

// TestViaSaysDatapath selects the kernel's datapath for an implementation that only this datapath has, unless the flag
// names another.
func TestViaSaysDatapath(t *testing.T) {
	for _, c := range []struct{ datapath, via, want string }{
		{"", lab.ViaIPTables, lab.DatapathKernel}, {"", lab.ViaIPVS, lab.DatapathKernel},
		{"", lab.ViaNone, lab.DatapathKernel},
		{"", "", lab.DatapathEBPF}, {"", lab.ViaEBPFSocket, lab.DatapathEBPF}, {lab.DatapathEBPF, lab.ViaIPTables,
			lab.DatapathEBPF},
	} {
		o := lab.Options{Topology: lab.TopologyPodLinks, Datapath: lab.DatapathEBPF, Via: c.via}
		isSet := func(flag string) bool { return flag == "datapath" && c.datapath != "" }
		if err := (labFlags{}).apply(&o, isSet); err != nil || o.Datapath != c.want {
			t.Errorf("via %q: datapath %q, want %q; %v", c.via, o.Datapath, c.want, err)
		}
	}
}
