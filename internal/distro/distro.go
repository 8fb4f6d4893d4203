// SPDX-License-Identifier: Apache-2.0

// Package distro finds programs, and names the command that installs a missing one on this distribution of Linux.
package distro

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// MissingError reports a program or another file that is not installed.
type MissingError struct {
	Name   string // the program's name, or the path of a file
	Remedy string // the command that installs it
}

func (e *MissingError) Error() string { return e.Name + " is missing: " + e.Remedy }

// Missing returns the error of a program or file of a Debian package.
func Missing(name, debianPackage string) *MissingError {
	release, _ := os.ReadFile("/etc/os-release") // os-release(5)
	return &MissingError{Name: name, Remedy: installCommand(string(release), debianPackage)}
}

// Find searches the directories in order for a program of a Debian package; an empty one stands for the PATH, which
// often lacks sbin. It returns the program's absolute path, or a [*MissingError].
func Find(name, debianPackage string, dirs ...string) (string, error) {
	for _, dir := range dirs {
		path, err := exec.LookPath(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		if path, err = filepath.Abs(path); err != nil {
			return "", fmt.Errorf("find %s: %w", name, err)
		}
		return path, nil
	}
	return "", Missing(name, debianPackage)
}

// A manager installs packages on the distributions with these IDs. Its names stand in the order of debianNames.
type manager struct {
	ids, command, names string
}

// The names of packages in 2026, where distributions call them differently.
const debianNames = "openvswitch-switch containernetworking-plugins docker.io qemu-system-x86 qemu-system-common"

func managers() []manager {
	return []manager{
		{"debian ubuntu", "apt install", debianNames},
		{"fedora rhel centos", "dnf install",
			"openvswitch containernetworking-plugins moby-engine qemu-system-x86 virtiofsd"},
		{"arch", "pacman -S", "openvswitch cni-plugins docker qemu-system-x86 virtiofsd"},
		{"suse opensuse", "zypper install", "openvswitch cni-plugins docker qemu-x86 virtiofsd"},
		{"alpine", "apk add", "openvswitch cni-plugins docker qemu-system-x86_64 virtiofsd"},
		{"nixos", "nix-shell -p", "openvswitch cni-plugins docker qemu virtiofsd"},
	}
}

// installCommand returns the command for the distribution that an os-release file names, by its ID or one of ID_LIKE.
func installCommand(osRelease, debianPackage string) string {
	var ids []string
	for line := range strings.Lines(osRelease) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			ids = slices.Insert(ids, 0, value)
		case "ID_LIKE":
			ids = append(ids, strings.Fields(value)...)
		}
	}
	for _, id := range ids {
		for _, m := range managers() {
			if slices.Contains(strings.Fields(m.ids), id) {
				if i := slices.Index(strings.Fields(debianNames), debianPackage); i >= 0 {
					debianPackage = strings.Fields(m.names)[i]
				}
				return m.command + " " + debianPackage
			}
		}
	}
	return "install Debian's package " + debianPackage + " or its like"
}
