// SPDX-License-Identifier: Apache-2.0

package version

import (
	"runtime/debug"
	"testing"
)

func TestRecorded(t *testing.T) {
	const revision = "0123456789abcdef0123456789abcdef01234567"
	info := &debug.BuildInfo{}
	if got := recorded(info); got != "devel" {
		t.Errorf("no facts: %q", got)
	}
	info.Main.Version = "v1.2.3"
	info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: "true"}}
	if got := recorded(info); got != "v1.2.3 0123456789ab (modified)" {
		t.Errorf("release: %q", got)
	}
	info.Main.Version = "v0.0.0-20260102030405-0123456789ab+dirty"
	if got := recorded(info); got != info.Main.Version {
		t.Errorf("a version with its commit: %q", got)
	}
}
