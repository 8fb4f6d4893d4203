// SPDX-License-Identifier: Apache-2.0

package dockerd

import (
	"os"
	"path/filepath"

	"mustang/internal/debian"
)

// debianPackage contains Docker or depends on the packages that it needs.
const debianPackage = "docker.io"

// configDir is a directory that dockerd writes to, wherever its other files are.
const configDir = "/etc/docker"

// requiredPrograms returns the client, dockerd and the programs that dockerd runs.
func requiredPrograms() []string {
	return []string{
		"dockerd", "docker", "docker-proxy", "docker-init", "containerd", "containerd-shim-runc-v2", "runc",
		"iptables", "ip6tables", "ps",
	}
}

// CheckInstalled returns a [*debian.MissingError] if a program that the engine
// needs is not installed.
func CheckInstalled() error {
	_, err := findPrograms()
	return err
}

// findPrograms returns the paths of requiredPrograms by name. Debian's directories come
// before the PATH: a client from elsewhere may have another version than the engine.
func findPrograms() (map[string]string, error) {
	found := map[string]string{}
	for _, name := range requiredPrograms() {
		var err error
		if found[name], err = debian.Find(name, debianPackage, "/usr/sbin", "/usr/bin", ""); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(configDir); err != nil {
		return nil, debian.Missing(configDir, debianPackage)
	}
	return found, nil
}

// linkPrograms fills a directory with links to the programs. It becomes dockerd's
// PATH: modprobe and apparmor_parser, which dockerd would run too, change the kernel.
func linkPrograms(dir string, programs map[string]string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for name, path := range programs {
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
