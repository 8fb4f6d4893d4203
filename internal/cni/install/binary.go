// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"

	"mustang/internal/cni/netconf"
)

// pluginPackage is the main package of the plugin in the Go build information.
const pluginPackage = "mustang/cmd/mustang-cni"

// FindPlugin returns the path of the plugin that belongs to a program of this project: in
// the program's directory, or in ../lib/cni, where Debian packages install plugins.
func FindPlugin(program string) (string, error) {
	dir := filepath.Dir(program)
	places := []string{filepath.Join(dir, netconf.PluginType), filepath.Join(dir, "..", "lib", "cni", netconf.PluginType)}
	for _, place := range places {
		if info, err := os.Stat(place); err == nil && info.Mode().IsRegular() {
			return place, nil
		}
	}
	return "", fmt.Errorf("plugin: %s and %s do not exist", places[0], places[1])
}

// readPlugin reads the plugin and checks its build information.
func readPlugin(path string) ([]byte, error) {
	program, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("plugin: %w", err)
	}
	if err := noPlugin(program); err != nil {
		return nil, fmt.Errorf("plugin %s: %w", path, err)
	}
	return program, nil
}

// foreignPlugin returns an error if a program is neither a build of the plugin nor its client. It does not run it.
func foreignPlugin(program []byte) error {
	if isClient(program) {
		return nil
	}
	return noPlugin(program)
}

// noPlugin returns an error if a program is not a build of the plugin.
func noPlugin(program []byte) error {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("not a build of %s: %w", netconf.PluginType, err)
	}
	if info.Path != pluginPackage {
		return fmt.Errorf("not a build of %s, but of %s", netconf.PluginType, info.Path)
	}
	return nil
}
