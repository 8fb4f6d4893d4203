// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mustang/internal/result"
)

// soundFile is a result file that corrupted ones are made of.
const soundFile = "../../internal/report/testdata/made-up.json"

// mostMemory bounds the memory of a reader of any file, which has up to 64 MiB, in KiB.
const mostMemory = 512 << 10

// corrupted returns texts of result files of which none is one, by what is wrong with them.
func corrupted(t *testing.T, sound string) map[string]string {
	t.Helper()
	first := func(old, instead string) string {
		changed := strings.Replace(sound, old, instead, 1)
		if changed == sound {
			t.Fatalf("%q is not in %s", old, soundFile)
		}
		return changed
	}
	n := len(sound)
	many := func(s string) string { return strings.Repeat(s, 60<<20/len(s)) }
	return map[string]string{
		"empty": "", "null": "null", "a list": "[]", "binary": "\x7fELF\x02\x01\x01\x00\xff\xfe", "two files": sound + sound,
		"truncated to half": sound[:n/2], "middle zeroed": sound[:n/3] + strings.Repeat("\x00", 100) + sound[n/3+100:],
		"schema 99": first(`"schema": 2`, `"schema": 99`), "CPUs 1e999": first(`"cpus": 2`, `"cpus": 1e999`), "NaN": first(`"ratio": 0.94091`, `"ratio": NaN`),
		"rows null": first(`"rows": [`, `"rows": [null], "x": [`), "unknown status": first(`"status": "ok"`, `"status": "fine\u001b[2J\nfine"`),
		"deeper than memory": many("["), "deep and wide": many(`[{"a":`), "many rows": `{"schema":2,"rows":[` + many("{},") + `{}]}`,
		"many samples":     `{"schema":2,"rows":[{"samples":[` + many("1,") + `1]}]}`,
		"a long text":      `{"schema":2,"run":{"kernel":"` + many("a") + `"}}`,
		"64 MiB of blanks": strings.Repeat(" ", 64<<20+1), "70 MiB of a sound file": sound + strings.Repeat(" ", 70<<20),
	}
}

// refuse runs a command line as a process that must refuse a file in one line, in bounded memory.
func refuse(t *testing.T, culprit string, args ...string) {
	t.Helper()
	if stdout := fails(t, culprit, args...); stdout != "" {
		t.Errorf("%s: stdout %.200q, want nothing", args[0], stdout)
	}
}

// fails expects a line on standard error, with the culprit, and returns what is on standard output.
func fails(t *testing.T, culprit string, args ...string) string {
	t.Helper()
	limited := fmt.Sprintf("ulimit -d %d && exec mustang \"$@\"", mostMemory)
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", limited, "sh"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // what it comes to is seen by the exit code
	if code := cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("%s: exit code %d, want %d", args[0], code, exitFailed)
	}
	text := stderr.String()
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, culprit) || len(text) > 3000+len(culprit) || strings.ContainsAny(text, "\x1b\x00") {
		t.Errorf("%s: stderr %.500q, want one line with %s", args[0], text, culprit)
	}
	return stdout.String()
}

// TestCorruptedResults gives files that are no result files to the commands that read them.
func TestCorruptedResults(t *testing.T) {
	sound, err := os.ReadFile(soundFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := result.Read(soundFile); err != nil {
		t.Fatal(err)
	}
	t.Setenv(envStateDir, filepath.Join(t.TempDir(), "state"))
	for name, text := range corrupted(t, string(sound)) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "results.json")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			refuse(t, path, "report", dir)
			refuse(t, path, "compare", soundFile, dir)
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
}

// TestUnreadableResults gives paths to the commands behind which there is no file.
func TestUnreadableResults(t *testing.T) {
	t.Setenv(envStateDir, filepath.Join(t.TempDir(), "state"))
	dir := t.TempDir()
	link := func(target, path string) string {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	folder := filepath.Join(dir, "folder", "results.json")
	pipe := filepath.Join(dir, "pipe", "results.json")
	for _, path := range []string{folder, filepath.Dir(pipe)} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"loop of links": link("ring-b", "ring-a"), "other end": link("ring-a", "ring-b"), "latest is itself": filepath.Dir(link("latest", "self/latest")),
		"latest and its run": filepath.Dir(link("../two/latest", "two/latest")), "file is a loop": filepath.Dir(link("results.json", "file/results.json")),
		"dangling latest": filepath.Dir(link("gone", "dangling/latest")), "dangling file": filepath.Dir(link("/gone", "gone/results.json")),
		"a directory": filepath.Dir(folder), "a pipe": filepath.Dir(pipe), "a device": "/dev/null", "endless device": "/dev/zero",
		"no rights": "/proc/self/mem", "nothing": filepath.Join(dir, "nothing"), "below a file": soundFile + "/x", "empty": dir, "long": dir + "/" + strings.Repeat("x", 300),
	} {
		t.Run(name, func(t *testing.T) {
			refuse(t, path, "report", path)
			refuse(t, path, "compare", path, soundFile)
		})
	}
	page := filepath.Join(dir, "full", "report.html") // where the page can't be written
	if err := os.MkdirAll(page, 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(soundFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full", "results.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if answer := fails(t, page, "report", filepath.Join(dir, "full")); !strings.Contains(answer, "for requests") {
		t.Errorf("report without a page: stdout %.200q, want the answer", answer)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "full"))
	if err != nil || len(entries) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
