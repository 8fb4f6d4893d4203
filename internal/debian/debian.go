// SPDX-License-Identifier: Apache-2.0

// Package debian finds programs of Debian packages.
package debian

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// MissingError reports a program or another file that is not installed.
type MissingError struct {
	Name   string // the program's name, or the path of a file
	Remedy string // the command that installs it
}

func (e *MissingError) Error() string { return e.Name + " is missing: " + e.Remedy }

// Missing returns the error of a program or file of a Debian package.
func Missing(name, debianPackage string) *MissingError {
	return &MissingError{Name: name, Remedy: "apt install " + debianPackage}
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
