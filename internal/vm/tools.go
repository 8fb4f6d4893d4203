// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A MissingToolError says that a program that guests need is not installed.
type MissingToolError struct {
	Tool    string // the program
	Package string // the Debian package that has it
}

func (e *MissingToolError) Error() string {
	return fmt.Sprintf("program %s is not installed (Debian package %s)", e.Tool, e.Package)
}

// tools are the programs that guests need, with their packages.
var tools = map[string]string{
	qemu:        "qemu-system-x86",
	virtiofsd:   "qemu-system-common",
	"depmod":    "kmod",
	"apt-cache": "apt",
	"apt-get":   "apt",
	"dpkg-deb":  "dpkg",
}

// findTool returns the path of one of the tools, or a *MissingToolError.
func findTool(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return filepath.Abs(path)
	}
	// users other than root have no sbin on their PATH
	if path, err := exec.LookPath(filepath.Join("/usr/sbin", name)); err == nil {
		return path, nil
	}
	return "", &MissingToolError{Tool: name, Package: tools[name]}
}

// CheckTools returns nil if this machine can run guests: the user is root, and
// QEMU and its daemon for shared directories are there. A program that is not
// is named by a *MissingToolError.
func CheckTools() error { return checkTools(false) }

// checkTools is CheckTools; bare guests need no shared directories.
func checkTools(bare bool) error {
	if os.Geteuid() != 0 {
		return errors.New("run in a guest: needs root")
	}
	needed := []string{qemu, virtiofsd}
	if bare {
		needed = needed[:1]
	}
	for _, name := range needed {
		if _, err := findTool(name); err != nil {
			return fmt.Errorf("run in a guest: %w", err)
		}
	}
	return nil
}

// lastLines returns the last n lines of a text that are not blank, as one line.
func lastLines(text string, n int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// release is the release of the running kernel.
func release() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("ask for the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}
