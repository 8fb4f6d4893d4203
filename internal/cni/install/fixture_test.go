// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// built is the directory with the programs that tests install.
var built string

func TestMain(m *testing.M) {
	if words := os.Getenv(envVictim); words != "" {
		os.Exit(victim(words))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "mustang-install")
		if err == nil {
			defer os.RemoveAll(dir)
			built = dir
			build := exec.Command("go", "build", "-o", dir+"/", "mustang/cmd/mustang-cni")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			build.Stderr = os.Stderr
			err = build.Run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

func program() string { return filepath.Join(built, "mustang-cni") }

// testPlace is a place in directories that are not there yet.
func testPlace(t *testing.T) Place {
	dir := t.TempDir()
	return Place{BinDir: dir + "/opt/cni/bin", ConfDir: dir + "/etc/cni/net.d", ConfName: DefaultConfName}
}

func network() Network {
	return Network{CNIVersion: "1.1.0", Name: "pods", Link: "veth", Services: "both", Subnets: []netip.Prefix{
		netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd00:77::/64"),
	}}
}

func conflist(t *testing.T, n Network) []byte {
	t.Helper()
	return testkit.Must(n.Conflist())(t)
}

func mustInstall(t *testing.T, p Place, text []byte) []string {
	t.Helper()
	changes := testkit.Must(p.Install(t.Context(), program(), text, false))(t)
	return done(changes)
}

func done(changes []Change) (out []string) {
	for _, c := range changes {
		out = append(out, c.Done)
	}
	return out
}

// tree is all files below a place's directories: names, modes, inodes, sizes and
// times, so that a rewritten file differs.
func tree(t *testing.T, p Place) string {
	t.Helper()
	var out []string
	root := strings.TrimSuffix(p.BinDir, "/opt/cni/bin")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		line := fmt.Sprint(path, " ", info.Mode())
		if info.Mode().IsRegular() {
			line += fmt.Sprint(" ", info.Size(), info.ModTime().UnixNano())
		}
		out = append(out, line)
		return nil
	})
	testkit.Succeed(t, err)
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list := testkit.Must(os.ReadDir(dir))(t)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// writeFile writes a file as a foreign program would.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	testkit.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}
