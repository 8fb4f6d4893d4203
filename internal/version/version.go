// SPDX-License-Identifier: Apache-2.0

// Package version is the version of the running program.
package version

import (
	"runtime/debug"
	"strings"
)

// stamp is the version that the Makefile sets by -ldflags -X.
var stamp string

// Program returns the version: that which the Makefile stamped, such as 0.1.0, or 0.1.0~git20261124.020145.906f0a9 of a
// commit before that release. Without a stamp it is what Go recorded of the build, and "devel" if it recorded nothing.
func Program() string {
	if stamp != "" {
		return stamp
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return devel
	}
	return recorded(info)
}

// devel is the version of a build of which nothing is known.
const devel = "devel"

// recorded returns the module's version, with the commit if the build recorded it.
func recorded(info *debug.BuildInfo) string {
	version := info.Main.Version
	var revision string
	dirty := false
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			revision = setting.Value
		case "vcs.modified":
			dirty = setting.Value == "true"
		}
	}
	if version == "" || version == "(devel)" {
		version = devel
	}
	if revision != "" && !strings.Contains(version, revision[:min(12, len(revision))]) {
		version += " " + revision[:min(12, len(revision))]
	}
	if dirty && !strings.Contains(version, "dirty") {
		version += " (modified)"
	}
	return version
}
