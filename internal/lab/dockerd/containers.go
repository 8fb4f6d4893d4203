// SPDX-License-Identifier: Apache-2.0

package dockerd

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
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

// Run starts a container whose first process is [Pause].
func (e *Engine) Run(ctx context.Context, c Container) (State, error) {
	if err := e.api.call(ctx, "POST /containers/create?name="+c.Name, c.config(), nil); err != nil {
		return State{}, err
	}
	if err := e.api.call(ctx, "POST /containers/"+c.Name+"/start", nil, nil); err != nil {
		return State{}, err
	}
	var found struct {
		State           struct{ Pid int }
		NetworkSettings struct{ IPAddress string }
	}
	if err := e.api.call(ctx, "GET /containers/"+c.Name+"/json", nil, &found); err != nil {
		return State{}, err
	}
	state := State{PID: found.State.Pid}
	if state.PID == 0 {
		return state, fmt.Errorf("its first process ended: %s", e.logTail())
	}
	if c.HostNetwork {
		return state, nil
	}
	var err error
	if state.IP, err = netip.ParseAddr(found.NetworkSettings.IPAddress); err != nil {
		return state, fmt.Errorf("dockerd: address of the container: %w", err)
	}
	return state, nil
}

// Parts of the API's requests.
type (
	object  = map[string]any
	binding struct{ HostPort string }
)

// config returns the API's description of the container. It has no seccomp filter,
// no hidden files in /proc, and the capabilities that an agent uses outside, so that
// measurements differ from the host's by the network alone.
func (c Container) config() object {
	host := object{
		"SecurityOpt": []string{"seccomp=unconfined"}, "MaskedPaths": []string{}, "ReadonlyPaths": []string{},
		"CapAdd": []string{"NET_ADMIN", "SYS_NICE"}, "LogConfig": object{"Type": "none"},
	}
	config := object{"Image": image, "Cmd": []string{imageProgram, PauseCommand}, "HostConfig": host}
	if len(c.Published) > 0 {
		exposed, bindings := object{}, map[string][]binding{}
		for inside, outside := range c.Published {
			for _, protocol := range []string{"tcp", "udp"} {
				port := fmt.Sprintf("%d/%s", inside, protocol)
				exposed[port] = object{}
				bindings[port] = []binding{{strconv.Itoa(int(outside))}}
			}
		}
		config["ExposedPorts"], host["PortBindings"] = exposed, bindings
	}
	if c.HostNetwork {
		host["NetworkMode"] = "host"
	}
	return config
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
	args := []string{e.client, "--host=unix://" + filepath.Join(e.options.Dir, socketFile), "exec", "--interactive"}
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
	cmd.Env = append(cmd.Env, "DOCKER_CONFIG="+filepath.Join(e.options.Dir, "client"))
	cmd.Path = e.client
	cmd.Args = slices.Concat(args, []string{container, imageProgram}, cmd.Args[1:])
	return nil
}

const (
	imageRepository = "mustang"
	imageTag        = "lab"
	image           = imageRepository + ":" + imageTag
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
	answer, err := e.api.send(ctx, "POST /images/create?fromSrc=-&repo="+imageRepository+"&tag="+imageTag, body)
	if err != nil {
		return fmt.Errorf("dockerd: import image: %w", err)
	}
	// The answer is a sequence of JSON values. An error is in the last one.
	for decoder := json.NewDecoder(bytes.NewReader(answer)); ; {
		var progress struct{ Error string }
		if err := decoder.Decode(&progress); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("dockerd: import image: %w", err)
		}
		if progress.Error != "" {
			return fmt.Errorf("dockerd: import image: %s", progress.Error)
		}
	}
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
