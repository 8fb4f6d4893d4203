// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"mustang/internal/testkit"
)

// TestFind checks the order of directories, and the error for a missing program.
func TestFind(t *testing.T) {
	onPath, beside := t.TempDir(), t.TempDir()
	t.Setenv("PATH", onPath)
	for _, path := range []string{filepath.Join(onPath, "both"), filepath.Join(beside, "both"),
		filepath.Join(beside, "one")} {
		testkit.Succeed(t, os.WriteFile(path, nil, 0o755))
	}
	testkit.Succeed(t, os.WriteFile(filepath.Join(onPath, "data"), nil, 0o644))
	for _, test := range []struct {
		name string
		dirs []string
		want string
	}{
		{"both", []string{"", beside}, onPath},
		{"both", []string{beside, ""}, beside},
		{"one", []string{"", beside}, beside},
		{"one", []string{""}, ""},
		{"data", []string{"", beside}, ""},
	} {
		got, err := Find(test.name, "some-package", test.dirs...)
		if test.want != "" {
			want := filepath.Join(test.want, test.name)
			testkit.Check(t, got == want && err == nil, "%s in %q: %q, %v, want %s", test.name, test.dirs, got, err, want)
			continue
		}
		if missing := (*MissingError)(nil); !errors.As(err, &missing) || err.Error() != test.name+
			" is missing: apt install some-package" {
			t.Errorf("%s in %q: %q, %v", test.name, test.dirs, got, err)
		}
	}
}

// TestInstallCommand has the os-release files of distributions, shortened.
func TestInstallCommand(t *testing.T) {
	for release, want := range map[string]string{
		"ID=debian\nVERSION_ID=\"13\"\n":            "apt install docker.io",
		"NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n":  "apt install docker.io",
		"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n": "apt install docker.io",
		"ID=fedora\n": "dnf install moby-engine",
		"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n": "dnf install moby-engine",
		"ID=arch\n": "pacman -S docker",
		"ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"": "zypper install docker",
		"ID=alpine\n": "apk add docker",
		"ID=nixos\n":  "nix-shell -p docker",
		"ID=own\n":    "install Debian's package docker.io or its like",
		"":            "install Debian's package docker.io or its like",
	} {
		got := installCommand(release, "docker.io")
		testkit.Check(t, got == want, "%q: %q, want %q", release, got, want)
	}
	got := installCommand("ID=fedora\n", "iptables")
	testkit.Check(t, got == "dnf install iptables", "got %q", got)
}
