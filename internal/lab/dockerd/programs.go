// SPDX-License-Identifier: Apache-2.0

package dockerd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// debianPackage contains Docker or depends on the packages that it needs.
const debianPackage = "docker.io"

// oldestAPI is the oldest version of Docker's API with all requests that Engine
// sends: that of Docker 20.10.
const oldestAPI = "1.41"

// configDir is a directory that dockerd writes to, wherever its other files are.
const configDir = "/etc/docker"

// requiredPrograms returns the client, dockerd and the programs that dockerd runs.
func requiredPrograms() []string {
	return []string{
		"dockerd", "docker", "docker-proxy", "docker-init", "containerd", "containerd-shim-runc-v2", "runc",
		"iptables", "ip6tables", "ps",
	}
}

// ProgramError reports a program that is not installed or too old.
type ProgramError struct {
	Program string // its name, or the path of a file
	Version string // the installed version; empty if it is not installed
	Needed  string // the oldest version that serves
	Package string // the Debian package that contains it
}

func (e *ProgramError) Error() string {
	if e.Version == "" {
		return fmt.Sprintf("%s is not installed (Debian package %s)", e.Program, e.Package)
	}
	return fmt.Sprintf("%s is version %s, which is too old: want %s (Debian package %s)", e.Program, e.Version, e.Needed, e.Package)
}

// CheckInstalled returns a [*ProgramError] if a program that the engine
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
		for _, dir := range []string{"/usr/sbin", "/usr/bin", ""} {
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && found[name] == "" {
				found[name] = path
			}
		}
		if found[name] == "" {
			return nil, &ProgramError{Program: name, Package: debianPackage}
		}
	}
	if _, err := os.Stat(configDir); err != nil {
		return nil, &ProgramError{Program: configDir, Package: debianPackage}
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
