// SPDX-License-Identifier: Apache-2.0

// Package version is the version of the running program.
package version

import "runtime/debug"

var stamp string // the version that the Makefile sets by -ldflags -X

// Program returns the version that the Makefile stamped. Examples are 0.1.0, and 0.1.0~git20261124.020145.906f0a9 for a
// commit before that release. Without a stamp it returns the version that Go recorded of the build, or "devel".
func Program() string {
	if stamp != "" {
		return stamp
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
