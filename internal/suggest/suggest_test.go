// SPDX-License-Identifier: Apache-2.0

package suggest

import (
	"testing"

	"mustang/internal/testkit"
)

func TestText(t *testing.T) {
	t.Parallel()
	suites := []string{"pod-links", "pod-links-ipv6", "docker", "cni", "all"}
	for _, test := range []struct {
		word, want string
		known      []string
	}{
		{"pod-lnks", "; did you mean pod-links?", suites},
		{"Docker", "; did you mean docker?", suites},
		{"cn", "; did you mean cni?", suites},
		{"pod", "; did you mean pod-links or pod-links-ipv6?", suites},
		{"network", "", suites},
		{"--fast", "", []string{"--list", "--wait"}},
		{"", "", suites},
		{"x", "", suites},
		{"v1", "; did you mean v2 or v3 or v4?", []string{"v2", "v3", "v3", "v4", "v5"}},
		{"a", "", nil},
	} {
		got := Text(test.word, test.known)
		testkit.Check(t, got == test.want, "%q: %q, want %q", test.word, got, test.want)
	}
}
