// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// dockerClient runs commands in containers.
type dockerClient struct {
	program string // the docker command
	dir     string // has the engine's files
}

// isContainer reports whether commands at that place run in a container.
func (l *Lab) isContainer(place string) bool {
	return l.docker != nil && slices.Contains([]string{ContainerA, ContainerB, ContainerHost}, place)
}

// inContainer makes cmd one that runs the same in a container. There is no other
// program in it than this one. Signals to cmd do not reach the process, but the
// end of its standard input does, also when cmd is killed.
func (c *dockerClient) inContainer(place string, cmd *exec.Cmd) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if cmd.Path != exe {
		return fmt.Errorf("%s has no program %s, only mustang", place, cmd.Path)
	}
	environ := cmd.Env
	if environ == nil {
		environ = os.Environ()
	}
	args := []string{c.program, "--host=unix://" + filepath.Join(c.dir, dockerSocket), "exec", "--interactive"}
	cmd.Env = nil
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if name == "" || strings.HasPrefix(name, "DOCKER_") {
			continue // the user's settings of another engine
		}
		// By name alone, for the command line is there for all to read.
		args = append(args, "--env", name)
		cmd.Env = append(cmd.Env, variable)
	}
	cmd.Env = append(cmd.Env, "DOCKER_CONFIG="+filepath.Join(c.dir, "client"))
	cmd.Path = c.program
	cmd.Args = slices.Concat(args, []string{place, dockerProgram}, cmd.Args[1:])
	return nil
}
