// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"os"

	"mustang/internal/distro"
)

const qemu = "qemu-system-x86_64"
const virtiofsd = "/usr/lib/qemu/virtiofsd"

var tools = map[string]string{
	qemu:        "qemu-system-x86",
	virtiofsd:   "qemu-system-common",
	"depmod":    "kmod",
	"apt-cache": "apt",
	"apt-get":   "apt",
	"dpkg-deb":  "dpkg",
	"zstd":      "zstd",
}

func findTool(name string) (string, error) { return distro.Find(name, tools[name], "", "/usr/sbin") }

// CheckTools returns an error unless this machine can run guests. The user has to be root. QEMU and, unless guests are
// bare, its daemon for shared directories have to be installed, else the error names the Debian package.
func CheckTools(bare bool) error {
	needed := []string{qemu, virtiofsd}
	if bare {
		needed = needed[:1]
	}
	err := findTools(needed...)
	if os.Geteuid() != 0 {
		err = errors.New("needs root")
	}
	if err != nil {
		return fmt.Errorf("run in a guest: %w", err)
	}
	return nil
}

func findTools(names ...string) error {
	for _, name := range names {
		if _, err := findTool(name); err != nil {
			return err
		}
	}
	return nil
}
