// SPDX-License-Identifier: Apache-2.0

package dockerd

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PauseCommand is the hidden subcommand that runs [Pause].
const PauseCommand = "lab-pause"

// Pause waits until ctx ends or the process receives SIGTERM. It is the first process
// of each container.
func Pause(ctx context.Context) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
	<-ctx.Done()
}

// Container describes a container to start.
type Container struct {
	Name string
	// HostNetwork leaves the container in the network namespace of the engine.
	HostNetwork bool
	// Published maps ports of the container to ports of the host, for TCP and UDP.
	Published map[uint16]uint16
}

// State is the state of a started container.
type State struct {
	PID int // of its first process
	// IP is the container's address on Docker's bridge; invalid with HostNetwork.
	IP netip.Addr
}

// Run starts a container whose first process is [Pause]. The container has no seccomp
// filter, no hidden files in /proc, and the capabilities that an agent uses outside, so
// that measurements differ from the host's by the network alone.
func (e *Engine) Run(ctx context.Context, c Container) (state State, err error) {
	args := []string{
		"run", "--detach", "--pull=never", "--name=" + c.Name, "--log-driver=none",
		"--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined", "--cap-add=NET_ADMIN", "--cap-add=SYS_NICE",
	}
	if c.HostNetwork {
		args = append(args, "--network=host")
	}
	for inside, outside := range c.Published {
		for _, protocol := range []string{"tcp", "udp"} {
			args = append(args, fmt.Sprintf("--publish=%d:%d/%s", outside, inside, protocol))
		}
	}
	if _, err := e.docker(ctx, nil, append(args, image, imageProgram, PauseCommand)...); err != nil {
		return state, err
	}
	const format = "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
	found, err := e.docker(ctx, nil, "inspect", "--format="+format, c.Name)
	if err != nil {
		return state, err
	}
	pid, address, _ := strings.Cut(found, " ")
	if state.PID, err = strconv.Atoi(pid); err != nil || state.PID == 0 {
		return state, fmt.Errorf("its first process ended: %s", e.logTail())
	}
	if c.HostNetwork {
		return state, nil
	}
	if state.IP, err = netip.ParseAddr(address); err != nil {
		return state, fmt.Errorf("dockerd: address of the container: %w", err)
	}
	return state, nil
}

// docker runs a command of the client on the engine, and returns what it prints.
func (e *Engine) docker(ctx context.Context, input io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, e.client, append([]string{e.host()}, args...)...)
	cmd.Env = []string{e.clientConfig()}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // no signals from the terminal
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = input, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], cmp.Or(ctx.Err(), err), strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// host is the client's argument that names the engine.
func (e *Engine) host() string { return "--host=unix://" + filepath.Join(e.options.Dir, socketFile) }

// clientConfig is the client's variable that names a directory without settings of the user.
func (e *Engine) clientConfig() string {
	return "DOCKER_CONFIG=" + filepath.Join(e.options.Dir, "client")
}

// Exec changes cmd, which has to be a command of the running program, into a
// `docker exec` of the same command in a container. Signals to cmd do not reach the
// process in the container. It sees the end of its standard input, also when cmd is
// killed.
func (e *Engine) Exec(container string, cmd *exec.Cmd) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if cmd.Path != exe {
		return fmt.Errorf("%s lacks program %s, only mustang", container, cmd.Path)
	}
	environ := cmd.Env
	if environ == nil {
		environ = os.Environ()
	}
	args := []string{e.client, e.host(), "exec", "--interactive"}
	cmd.Env = nil
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if name == "" || strings.HasPrefix(name, "DOCKER_") {
			continue // the user's settings for another engine
		}
		// The name alone: everyone can read the command line.
		args = append(args, "--env", name)
		cmd.Env = append(cmd.Env, variable)
	}
	cmd.Env = append(cmd.Env, e.clientConfig())
	cmd.Path = e.client
	cmd.Args = slices.Concat(args, []string{container, imageProgram}, cmd.Args[1:])
	return nil
}

const (
	image = "mustang:lab"
	// imageProgram is the path of the image's only file, the static program.
	imageProgram = "/mustang"
)

// ImportImage makes the containers' image from a static program.
func (e *Engine) ImportImage(ctx context.Context, program string) error {
	file, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer file.Close()
	if err := checkStatic(file); err != nil {
		return fmt.Errorf("image: %s %w", program, err)
	}
	body, archive := io.Pipe()
	go func() { _ = archive.CloseWithError(writeImage(archive, file)) }()
	defer body.Close() // ends the write
	_, err = e.docker(ctx, body, "import", "-", image)
	return err
}

// writeImage writes the only layer of the image.
func writeImage(w io.Writer, program *os.File) error {
	info, err := program.Stat()
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	header := &tar.Header{Name: imageProgram[1:], Mode: 0o755, Size: info.Size(), Typeflag: tar.TypeReg}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	if _, err := io.Copy(archive, program); err != nil {
		return err
	}
	return archive.Close()
}

// checkStatic returns an error if the program needs a dynamic loader, which the image
// lacks.
func checkStatic(program io.ReaderAt) error {
	file, err := elf.NewFile(program)
	if err != nil {
		return err
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return errors.New("is not static (build it with CGO_ENABLED=0)")
		}
	}
	return nil
}
