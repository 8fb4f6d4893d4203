// SPDX-License-Identifier: Apache-2.0

// Package distro finds programs, and names the command that installs a missing one on this distribution of Linux.
package distro

import (
	"cmp"
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

// A manager installs packages on the distributions with these IDs. It calls packages by other names than Debian.
type manager struct {
	ids     []string
	command string
	names   map[string]string
}

func managers() []manager {
	plugins, switches, docker := "containernetworking-plugins", "openvswitch-switch", "docker.io"
	qemu, shared := "qemu-system-x86", "qemu-system-common"
	return []manager{
		{[]string{"debian", "ubuntu"}, "apt install", nil},
		{[]string{"fedora", "rhel", "centos"}, "dnf install",
			map[string]string{switches: "openvswitch", docker: "moby-engine", shared: "virtiofsd"}},
		{[]string{"arch"}, "pacman -S",
			map[string]string{switches: "openvswitch", plugins: "cni-plugins", docker: "docker", shared: "virtiofsd"}},
		{[]string{"suse", "opensuse"}, "zypper install", map[string]string{
			switches: "openvswitch", plugins: "cni-plugins", docker: "docker", qemu: "qemu-x86", shared: "virtiofsd"}},
		{[]string{"alpine"}, "apk add", map[string]string{switches: "openvswitch", plugins: "cni-plugins",
			docker: "docker", qemu: "qemu-system-x86_64", shared: "virtiofsd"}},
		{[]string{"nixos"}, "nix-shell -p", map[string]string{
			switches: "openvswitch", plugins: "cni-plugins", docker: "docker", qemu: "qemu", shared: "virtiofsd"}},
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
			if slices.Contains(m.ids, id) {
				name, section, _ := strings.Cut(debianPackage, " (")
				if m.names == nil && section != "" {
					name = debianPackage
				}
				return m.command + " " + cmp.Or(m.names[name], name)
			}
		}
	}
	debianPackage, _, _ = strings.Cut(debianPackage, " (") // the section of Debian
	return "install Debian's package " + debianPackage + " or its like"
}
