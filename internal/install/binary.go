// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"

	"mustang/internal/cni"
)

// pluginPackage is the package that the plugin is built of, as the Go toolchain
// notes it in the program.
const pluginPackage = "mustang/cmd/mustang-cni"

// FindPlugin is the plugin that belongs to a program of this project: the one
// beside it, or the one in lib/cni beside the program's bin directory, where
// Debian's packages have their plugins.
func FindPlugin(program string) (string, error) {
	dir := filepath.Dir(program)
	places := []string{filepath.Join(dir, cni.PluginType), filepath.Join(dir, "..", "lib", "cni", cni.PluginType)}
	for _, place := range places {
		if info, err := os.Stat(place); err == nil && info.Mode().IsRegular() {
			return place, nil
		}
	}
	return "", fmt.Errorf("plugin: neither %s nor %s is there", places[0], places[1])
}

// readPlugin reads the plugin's program.
func readPlugin(path string) ([]byte, error) {
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("plugin: %w", err)
	}
	if err := foreignPlugin(program); err != nil {
		return nil, fmt.Errorf("plugin %s: %w", path, err)
	}
	return program, nil
}

// foreignPlugin says why a program is no build of the plugin. It is not run.
func foreignPlugin(program []byte) error {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("it is no build of %s: %w", cni.PluginType, err)
	}
	if info.Path != pluginPackage {
		return fmt.Errorf("it is no build of %s, but of %s", cni.PluginType, info.Path)
	}
	return nil
}
