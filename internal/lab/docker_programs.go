// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"mustang/internal/podlink"
)

// dockerPackage is the Debian package that has Docker, or depends on what it
// needs.
const dockerPackage = "docker.io"

// dockerOldest is the oldest version of Docker's API that has all that we use:
// that of Docker 20.10.
const dockerOldest = "1.41"

// dockerEtc is where dockerd may write, wherever its own files are.
const dockerEtc = "/etc/docker"

// dockerPrograms are what dockerd runs, and the client.
func dockerPrograms() []string {
	return []string{
		"dockerd", "docker", "docker-proxy", "docker-init", "containerd", "containerd-shim-runc-v2", "runc",
		"iptables", "ip6tables", "ps",
	}
}

// OldProgramError says that a program is too old.
type OldProgramError struct {
	Program, Version string
	Needed           string // the oldest version that is good
	Package          string // the Debian package that has it
}

func (e *OldProgramError) Error() string {
	return fmt.Sprintf("%s is version %s, which is too old: want %s (Debian package %s)", e.Program, e.Version, e.Needed, e.Package)
}

// FindDocker returns nil if all is installed that the docker topology needs,
// otherwise a *podlink.MissingProgramError.
func FindDocker() error {
	_, err := findDocker()
	return err
}

// findDocker returns the paths of dockerPrograms by name. Debian's come first: a
// client from elsewhere on the PATH may be of another version than the engine.
func findDocker() (map[string]string, error) {
	found := map[string]string{}
	for _, name := range dockerPrograms() {
		for _, dir := range []string{"/usr/sbin", "/usr/bin", ""} {
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && found[name] == "" {
				found[name] = path
			}
		}
		if found[name] == "" {
			return nil, &podlink.MissingProgramError{Program: name, Package: dockerPackage}
		}
	}
	if _, err := os.Stat(dockerEtc); err != nil {
		return nil, &podlink.MissingProgramError{Program: dockerEtc, Package: dockerPackage}
	}
	return found, nil
}

// linkPrograms fills a directory with links to the programs, which is then all
// that dockerd finds. Others that it would run change more than its own network:
// modprobe and apparmor_parser change the kernel.
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
