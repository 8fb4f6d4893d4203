// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/podlink"
)

const (
	// dockerTimeout is how long dockerd may take until it answers: half a second, or
	// that many times more in a guest without the processor's help.
	dockerTimeout = 2 * time.Minute
	dockerPoll    = 10 * time.Millisecond
	dockerLog     = "dockerd.log"
	dockerSocket  = "docker.sock"
	// maxSocketPath is the longest path of a unix socket (unix(7)).
	maxSocketPath = 107
)

// engine is a running dockerd.
type engine struct {
	dir string // has all its files
	cmd *exec.Cmd
	api dockerAPI
}

// startDocker starts dockerd inside host-a, and returns when it answers. It has
// all its files in a directory of the lab, and shares nothing with one that the
// machine runs. It ends with the lab.
func (l *Lab) startDocker(ctx context.Context, programs map[string]string) (_ *engine, err error) {
	dir, err := filepath.Abs(l.store.dockerDir(l.Options.Name))
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, dockerSocket)
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("the path of socket %s has more than %d bytes", socket, maxSocketPath)
	}
	if err := l.checkNetfilterCall(); err != nil {
		return nil, err
	}
	for _, name := range []string{"", "etc", "opt", "security", "tmp", "data"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return nil, err
		}
	}
	if err := linkPrograms(filepath.Join(dir, "bin"), programs); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "daemon.json"), []byte("{}\n"), 0o600); err != nil {
		return nil, err
	}
	e := &engine{dir: dir, api: newDockerAPI(socket)}
	if err := l.startDockerd(e, programs["dockerd"]); err != nil {
		return nil, fmt.Errorf("start dockerd: %w", err)
	}
	l.docker = &dockerClient{program: programs["docker"], dir: dir}
	if err := e.await(ctx); err != nil {
		return nil, err
	}
	return e, e.api.checkVersion(ctx)
}

// checkNetfilterCall returns an error if the module is not loaded that passes
// Docker's bridged packets to its rules. dockerd would load it, which reaches
// bridges that are not the lab's.
func (l *Lab) checkNetfilterCall() error {
	if _, err := l.namespaces[HostA].Sysctl("net/bridge/bridge-nf-call-iptables"); err == nil {
		return nil
	}
	var kernel unix.Utsname
	_ = unix.Uname(&kernel) // no error is possible with room for the answer
	return &podlink.UnsupportedError{
		Mode: "bridge", Feature: "netfilter call for Docker's bridge", Module: "br_netfilter", Since: "3.18",
		Kernel: unix.ByteSliceToString(kernel.Release[:]),
	}
}

// startDockerd starts the process. The paths in its arguments are those that it
// sees, see dockerMounts.
func (l *Lab) startDockerd(e *engine, program string) error {
	log, err := os.OpenFile(filepath.Join(e.dir, dockerLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd = exec.Command(program,
		"--config-file=/run/daemon.json", "--host=unix:///run/"+dockerSocket, "--group=root",
		"--data-root=/run/data", "--storage-driver=overlay2", "--exec-root=/run/exec", "--pidfile=/run/docker.pid",
		"--exec-opt=native.cgroupdriver=cgroupfs", "--cgroup-parent=/"+dockerCgroup(l.Options.Name),
		"--bip="+dockerBridge, fmt.Sprintf("--userland-proxy=%t", !l.Options.NoProxy),
		"--userland-proxy-path=/run/bin/docker-proxy", "--oom-score-adjust=0", "--raw-logs", "--log-level=warn")
	// Nothing of the user's: DOCKER_..., proxies, systemd's socket.
	e.cmd.Env = []string{"PATH=/run/bin", "HOME=/run/tmp", "TMPDIR=/run/tmp"}
	e.cmd.Dir = "/"
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal from our terminal
	mounts := func() error { return dockerMounts(e.dir) }
	if err := startApart(l.namespaces[HostA], mounts, e.cmd); err != nil {
		return err
	}
	l.children = append(l.children, e.cmd)
	return nil
}

// await waits until dockerd answers. It is an error if it ends, or takes too
// long.
func (e *engine) await(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, dockerTimeout)
	defer cancel()
	for ; ; time.Sleep(dockerPoll) {
		// It may be let in long before it is answered; and is not if dockerd ends.
		err := e.api.call(limited, "GET /_ping", nil, nil)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case e.ended():
			return fmt.Errorf("dockerd ended: %s", e.lastWords())
		case limited.Err() != nil:
			return fmt.Errorf("dockerd is not ready after %v (%s): %w", dockerTimeout, e.lastWords(), err)
		}
	}
}

// ended reports whether dockerd is gone, and leaves it to others to reap it.
func (e *engine) ended() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, e.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0 || errors.Is(err, unix.ECHILD)
}

// lastWords are the last lines of dockerd's log, as one.
func (e *engine) lastWords() string {
	const many = 3
	text, err := os.ReadFile(filepath.Join(e.dir, dockerLog))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if lines[0] == "" {
		return "its log is empty"
	}
	return strings.Join(lines[max(0, len(lines)-many):], " | ")
}
