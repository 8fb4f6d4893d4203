// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"mustang/internal/cni/netconf"
	"mustang/internal/datapath/objects"
	"mustang/internal/version"
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

// Client returns the CNI plugin for nodes with an agent, nil if there is none for this processor. The caller must not change it.
// It is a program of some kilobytes in C, which starts in a fraction of the time of a Go program. It hands the verb to the agent
// (package server), and else runs the plugin in Go, which lies beside it. Its requests name the version of this program.
func Client() []byte {
	return stamp(clientProgram, version.Program(), strconv.Itoa(objects.LayoutVersion))
}

// place begins the 256 bytes of the program where its version and layout go.
const (
	place     = "MUSTANG_BUILD"
	placeSize = 256
)

// stamp returns the program with a version and a layout of maps. If they are too long, it returns the program as it is,
// and agents decline its requests.
func stamp(program []byte, version, layout string) []byte {
	out := bytes.Clone(program)
	text := version + "\x00" + layout + "\x00"
	if at := bytes.Index(out, []byte(place)); at >= 0 && len(text) <= placeSize {
		clear(out[at : at+placeSize])
		copy(out[at:], text)
	}
	return out
}

// maxClientSize is more than the size of any version's program in bytes.
const maxClientSize = 64 << 10

// clientMark is in every version's program: a part of its error if it cannot run the plugin.
const clientMark = ", which has to be beside this program"

// isClient reports whether a file is the program, of this version or another.
func isClient(file []byte) bool {
	return len(file) < maxClientSize && bytes.HasPrefix(file, []byte("\x7fELF")) && bytes.Contains(file, []byte(clientMark))
}
