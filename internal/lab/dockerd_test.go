// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestDockerExec checks the docker command of a command in a container. Its command line lacks values of the
// environment, and its environment lacks settings of the user's engine.
func TestDockerExec(t *testing.T) {
	exe := testkit.Must(os.Executable())(t)
	e := &engine{dir: "/lab", client: "/usr/bin/docker"}
	cmd := exec.Command(exe, "agent", "--x")
	cmd.Env = []string{"A=secret", "DOCKER_HOST=tcp://127.0.0.1:1", "DOCKER_CONFIG=/root"}
	testkit.Succeed(t, e.wrap("container-a", cmd))
	want := []string{
		"/usr/bin/docker", "--host=unix:///lab/docker.sock", "exec", "--interactive", "--env", "A", "container-a", "/mustang",
		"agent", "--x",
	}
	if cmd.Path != want[0] || !slices.Equal(cmd.Args, want) ||
		!slices.Equal(cmd.Env, []string{"A=secret", "DOCKER_CONFIG=/lab/client"}) {
		t.Errorf("%s %q with %q", cmd.Path, cmd.Args, cmd.Env)
	}
	if err := e.wrap("container-a", exec.Command("/bin/true")); err == nil || !strings.Contains(err.Error(), "/bin/true") {
		t.Errorf("error %v for a program that the container lacks", err)
	}
}
