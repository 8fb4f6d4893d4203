// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/ulikunitz/xz"
)

// modulesDep is the file that says which modules need which others.
const modulesDep = "modules.dep"

// Modules that guests can't do without, unless they are part of the kernel's
// image: for talking to the host, for a root file system of the host's files, for
// a network device.
var (
	portModules    = []string{"virtio_pci", "virtio_console"}
	rootModules    = []string{"fuse", "virtiofs", "overlay"}
	networkModules = []string{"virtio_net"}
)

// module is a kernel module as it is loaded.
type module struct {
	name string
	data []byte
}

// loadModules reads modules and those that they depend on, in the order in which
// they can be loaded.
func loadModules(dir string, names []string) ([]module, error) {
	files, err := moduleOrder(dir, names)
	if err != nil {
		return nil, err
	}
	var out []module
	for _, file := range files {
		data, err := readModule(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		out = append(out, module{moduleName(file), data})
	}
	return out, nil
}

// moduleOrder returns the files of modules and what they depend on.
func moduleOrder(dir string, names []string) ([]string, error) {
	deps, err := os.ReadFile(filepath.Join(dir, modulesDep))
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	known := map[string][]string{}
	for file := range strings.Lines(string(builtin)) {
		known[moduleName(strings.TrimSpace(file))] = nil
	}
	for line := range strings.Lines(string(deps)) {
		// "a.ko.xz: b.ko.xz c.ko.xz": a needs b, which needs c
		file, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
		known[moduleName(file)] = append([]string{file}, strings.Fields(needs)...)
	}
	var order []string
	listed := map[string]bool{}
	for _, name := range names {
		files, ok := known[moduleName(name)]
		if !ok {
			return nil, fmt.Errorf("kernel modules: no %s in %s", name, dir)
		}
		for i := len(files) - 1; i >= 0; i-- {
			if !listed[files[i]] {
				listed[files[i]] = true
				order = append(order, files[i])
			}
		}
	}
	return order, nil
}

// moduleName returns the name of a module by its file's name.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// readModule reads and decompresses a module.
func readModule(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("kernel module: %w", err)
	}
	switch filepath.Ext(file) {
	case ".ko":
		return data, nil
	case ".xz":
		reader, err := xz.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("kernel module %s: %w", file, err)
		}
		data, err := io.ReadAll(reader)
		if err != nil {
			return nil, fmt.Errorf("kernel module %s: %w", file, err)
		}
		return data, nil
	}
	return nil, fmt.Errorf("kernel module %s: compressed in a way that is not known", file)
}
