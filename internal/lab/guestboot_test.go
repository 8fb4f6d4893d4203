// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"mustang/internal/vm"
)

// TestWrapRefuses passes arguments that no guest can run with. TestGuests runs agents with sound ones.
func TestWrapRefuses(t *testing.T) {
	g := guestPod{Name: "pod-a"}
	if err := g.wrap(&exec.Cmd{Path: "/bin/agent", Args: []string{"agent", "--cpu=x"}}); err == nil ||
		!strings.Contains(err.Error(), "--cpu=x") {
		t.Errorf("error %v for a CPU that is no number", err)
	}
	if err := RunGuest(context.Background(), []string{"x"}, vm.Options{}); err == nil ||
		!strings.Contains(err.Error(), "one argument") {
		t.Errorf("error %v for an argument that no lab passes", err)
	}
}
