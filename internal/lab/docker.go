// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/distro"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/vm"
)

var containers = []string{ContainerA, ContainerB, ContainerHost}

const dockerLink = "bridge"

const dockerBridge = "172.17.0.1/16" // the address of Docker's bridge with the range of its containers

// containerAddresses are the addresses that Docker assigns, in the order in which the containers are started.
var containerAddresses = map[string]netip.Addr{
	ContainerA: netip.MustParseAddr("172.17.0.2"),
	ContainerB: netip.MustParseAddr("172.17.0.3"),
}

func buildDocker(ctx context.Context, l *Lab) (err error) {
	if err := buildTwoHosts(ctx, l); err != nil {
		return err
	}
	if err := l.startDocker(ctx); err != nil {
		return err
	}
	for _, place := range containers {
		if err := l.addContainer(ctx, place); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return nil
}

func (l *Lab) startDocker(ctx context.Context) (err error) {
	// dockerd would load br_netfilter, and with that affect bridges outside of the lab.
	if _, err := rtnl.In(l.namespaces[HostA]).Sysctl("net/bridge/bridge-nf-call-iptables"); err != nil {
		return UnsupportedError{
			Mode: dockerLink, Feature: "netfilter call for Docker's bridge", Module: "br_netfilter", Since: "3.18",
		}.Here()
	}
	if err := l.startEngine(ctx); err != nil {
		return err
	}
	program := l.store.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return fmt.Errorf("find the running program: %w", err)
		}
	}
	if err := l.docker.importImage(ctx, program); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	return nil
}

// addContainer starts a container whose first process is [Pause], and adds its network namespace as a place. The
// container runs without seccomp filter and without hidden files in /proc, and with the capabilities that an agent
// uses outside. Only its network differs from the host's.
func (l *Lab) addContainer(ctx context.Context, place string) error {
	args := []string{
		"run", "--detach", "--pull=never", "--name=" + place, "--log-driver=none",
		"--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined", "--cap-add=NET_ADMIN",
		"--cap-add=SYS_NICE",
	}
	switch place {
	case ContainerHost:
		args = append(args, "--network=host")
	case ContainerA:
		for _, protocol := range []string{"tcp", "udp"} {
			args = append(args, fmt.Sprintf("--publish=%d:%d/%s", PublishedPort, ServicePort, protocol))
		}
	}
	if _, err := l.docker.run(ctx, nil, append(args, image, imageProgram, PauseCommand)...); err != nil {
		return err
	}
	const format = "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
	found, err := l.docker.run(ctx, nil, "inspect", "--format="+format, place)
	if err != nil {
		return err
	}
	pid, address, _ := strings.Cut(found, " ")
	switch want := containerAddresses[place]; {
	case pid == "0" || pid == "":
		return fmt.Errorf("its first process ended: %s", l.docker.logTail())
	case place == ContainerHost:
		l.namespaces[place], err = netns.Open(l.namespaces[HostA].Path())
		return err
	case address != want.String():
		return fmt.Errorf("dockerd assigned the address %s, not %s", address, want)
	}
	ns, err := netns.Bind("/proc/"+pid+"/ns/net", namespaceName(l.Options.Name, place))
	if err != nil {
		return err
	}
	l.namespaces[place], l.pods[place] = ns, attached{device: IfName}
	return nil
}

// HostDevice returns the host's device of a container, a port of Docker's bridge; empty for places without one.
func (l *Lab) HostDevice(place string) (string, error) {
	if l.docker == nil || l.pods[place].device == "" {
		return "", nil
	}
	inside, err := rtnl.In(l.namespaces[place]).Device(l.pods[place].device)
	if err != nil {
		return "", err
	}
	outside, err := rtnl.In(l.namespaces[HostA]).DeviceByIndex(inside.PeerIndex)
	if err != nil {
		return "", fmt.Errorf("lab %s: peer of %s's %s: %w", l.Options.Name, place, inside.Name, err)
	}
	return outside.Name, nil
}

const (
	// dockerd answers in half a second, and much later in an emulated virtual machine.
	dockerTimeout = 2 * time.Minute
	dockerLog     = "dockerd.log"
	dockerSocket  = "docker.sock"
	dockerConfig  = "/etc/docker" // a directory that dockerd writes to, wherever its other files are
	image         = "mustang:lab"
	imageProgram  = "/mustang" // the path of the image's only file, the static program
)

// PauseCommand is the hidden subcommand that runs [Pause].
const PauseCommand = "lab-pause"

// Pause waits until ctx ends or the process receives SIGTERM. It is the first process of each container.
func Pause(ctx context.Context) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
	<-ctx.Done()
}

// engine is a running dockerd with its files in one directory. It ends when its namespace's processes are killed.
type engine struct {
	dir    string
	client string // path of the docker command
	cmd    *exec.Cmd
}

// findDocker returns the paths of the client, of dockerd and of the programs that dockerd runs, by name. Debian's
// directories come before the PATH: a client from elsewhere may have another version than the engine.
func findDocker() (map[string]string, error) {
	const debianPackage = "docker.io" // contains them, or depends on the packages that do
	found := map[string]string{}
	for _, name := range []string{
		"dockerd", "docker", "docker-proxy", "docker-init", "containerd", "containerd-shim-runc-v2", "runc", "iptables",
		"ip6tables", "ps",
	} {
		var err error
		if found[name], err = distro.Find(name, debianPackage, "/usr/sbin", "/usr/bin", ""); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(dockerConfig); err != nil {
		return nil, distro.Missing(dockerConfig, debianPackage)
	}
	return found, nil
}

// enterMounts is a script that runs its further arguments with the mounts of dockerd, in the current mount
// namespace. Its first argument is the directory that becomes /run: dockerd, containerd and runc keep files at fixed
// paths there. It hides the daemons of this machine from them, such as firewalld on D-Bus. dockerd would raise
// limits of the whole machine in /proc/sys/kernel. AppArmor finds no profile, and containerd makes a directory in
// /opt. Images and containers are in memory: overlayfs works on tmpfs, independent of the directory's file system.
const enterMounts = `
dir=$1; shift
settings=/proc/sys/kernel
mount --bind $settings $settings
mount -o remount,bind,ro $settings
for m in etc:` + dockerConfig + ` security:/sys/kernel/security opt:/opt; do
	if [ -d "${m#*:}" ]; then mount --bind "$dir/${m%%:*}" "${m#*:}"; fi
done
mount --bind "$dir" /run
mount -t tmpfs -o nosuid,mode=0700 tmpfs /run/data
exec env -i PATH=/run/bin HOME=/run/tmp TMPDIR=/run/tmp "$@"`

// startEngine starts dockerd on host-a and waits until it answers. After an error the lab's end kills the rest.
func (l *Lab) startEngine(ctx context.Context) (err error) {
	programs, err := findDocker()
	if err != nil {
		return err
	}
	e := &engine{client: programs["docker"]}
	if e.dir, err = filepath.Abs(l.store.dockerDir(l.Options.Name)); err != nil {
		return err
	}
	for _, name := range []string{"", "bin", "etc", "opt", "security", "tmp", "data"} {
		if err := os.Mkdir(filepath.Join(e.dir, name), 0o700); err != nil {
			return err
		}
	}
	// bin becomes dockerd's PATH: modprobe and apparmor_parser, which dockerd would run too, change the kernel.
	for name, path := range programs {
		if err := os.Symlink(path, filepath.Join(e.dir, "bin", name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(e.dir, "daemon.json"), []byte("{}\n"), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(e.dir, dockerLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// The paths are in dockerd's own mount namespace, see enterMounts. That namespace ends with dockerd and its children;
	// unmounts outside propagate into it, and nothing propagates out.
	e.cmd = exec.Command("unshare", "--mount", "--propagation=slave", "sh", "-ec", enterMounts, "sh", e.dir,
		programs["dockerd"], "--config-file=/run/daemon.json", "--host=unix:///run/"+dockerSocket, "--group=root",
		"--data-root=/run/data", "--storage-driver=overlay2", "--exec-root=/run/exec", "--pidfile=/run/docker.pid",
		"--exec-opt=native.cgroupdriver=cgroupfs", "--cgroup-parent=/"+dockerCgroup(l.Options.Name),
		"--bip="+dockerBridge, fmt.Sprintf("--userland-proxy=%t", !l.Options.NoProxy),
		"--userland-proxy-path=/run/bin/docker-proxy", "--oom-score-adjust=0", "--raw-logs", "--log-level=warn")
	e.cmd.Dir, e.cmd.Stdout, e.cmd.Stderr = "/", log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signals from the terminal
	if err := l.namespaces[HostA].Start(e.cmd); err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	l.docker, l.children = e, append(l.children, e.cmd)
	return e.awaitReady(ctx)
}

func (e *engine) awaitReady(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, dockerTimeout)
	defer cancel()
	for ; ; time.Sleep(50 * time.Millisecond) {
		// dockerd may accept a connection long before it answers, or end in between.
		_, err := e.run(limited, nil, "version")
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case e.ended():
			return fmt.Errorf("dockerd ended: %s", e.logTail())
		case limited.Err() != nil:
			return fmt.Errorf("dockerd is not ready after %v (%s): %w", dockerTimeout, e.logTail(), err)
		}
	}
}

func (e *engine) ended() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, e.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0 || errors.Is(err, unix.ECHILD)
}

func (e *engine) logTail() string {
	text, _ := os.ReadFile(filepath.Join(e.dir, dockerLog))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return cmp.Or(strings.Join(lines[max(0, len(lines)-3):], " | "), "its log is empty")
}

func (e *engine) run(ctx context.Context, input io.Reader, args ...string) (string, error) {
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

func (e *engine) host() string { return "--host=unix://" + filepath.Join(e.dir, dockerSocket) }

// clientConfig is the client's variable that names a directory without settings of the user.
func (e *engine) clientConfig() string { return "DOCKER_CONFIG=" + filepath.Join(e.dir, "client") }

// wrap changes cmd, a command of the running program, into a `docker exec` of the same command in a container. Signals
// to cmd do not reach the process in the container. It sees the end of its standard input, also when cmd is killed.
func (e *engine) wrap(container string, cmd *exec.Cmd) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if cmd.Path != exe {
		return fmt.Errorf("%s lacks program %s, only mustang", container, cmd.Path)
	}
	args := []string{e.client, e.host(), "exec", "--interactive"}
	environ := cmd.Environ()
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

func (e *engine) importImage(ctx context.Context, path string) error {
	if err := vm.CheckStatic(path); err != nil {
		return err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	head := tar.Header{Name: imageProgram[1:], Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}
	if err := archive.WriteHeader(&head); err != nil {
		return err
	}
	_, _ = archive.Write(program) // Close returns its error
	if err := archive.Close(); err != nil {
		return err
	}
	_, err = e.run(ctx, &layer, "import", "-", image)
	return err
}
