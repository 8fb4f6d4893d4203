// SPDX-License-Identifier: Apache-2.0

package dockerd

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExec checks the docker command of a command in a container: no value of the
// environment is on its command line, and no setting of the user's engine in its
// environment.
func TestExec(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{options: Options{Dir: "/lab"}, client: "/usr/bin/docker"}
	cmd := exec.Command(exe, "agent", "--x")
	cmd.Env = []string{"A=secret", "DOCKER_HOST=tcp://127.0.0.1:1", "DOCKER_CONFIG=/root"}
	if err := e.Exec("container-a", cmd); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/usr/bin/docker", "--host=unix:///lab/docker.sock", "exec", "--interactive", "--env", "A", "container-a", "/mustang", "agent", "--x",
	}
	if cmd.Path != want[0] || !slices.Equal(cmd.Args, want) || !slices.Equal(cmd.Env, []string{"A=secret", "DOCKER_CONFIG=/lab/client"}) {
		t.Errorf("%s %q with %q", cmd.Path, cmd.Args, cmd.Env)
	}
	if err := e.Exec("container-a", exec.Command("/bin/true")); err == nil || !strings.Contains(err.Error(), "/bin/true") {
		t.Errorf("error %v for a program that the container lacks", err)
	}
}

// TestWriteImage checks that the image has one executable file.
func TestWriteImage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out bytes.Buffer
	if err := writeImage(&out, file); err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(&out)
	header, err := archive.Next()
	if err != nil || header.Name != "mustang" || header.Mode != 0o755 {
		t.Fatalf("file %+v, %v", header, err)
	}
	if data, err := io.ReadAll(archive); err != nil || string(data) != "content" {
		t.Errorf("content %q, %v", data, err)
	}
	if _, err := archive.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("a second file: %v", err)
	}
}
