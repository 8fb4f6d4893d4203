// SPDX-License-Identifier: Apache-2.0

// Package dockerd runs a private Docker Engine inside a network namespace. The
// engine keeps all its files in one directory and its images and containers in
// memory. It shares nothing with an engine that the machine runs.
//
// Its containers have one program, a static mustang, from an image that
// [Engine.ImportImage] makes. Nothing is pulled.
package dockerd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

const (
	// startTimeout limits the time until dockerd answers. It takes half a second, and
	// much longer in an emulated virtual machine.
	startTimeout = 2 * time.Minute
	pollInterval = 50 * time.Millisecond
	logFile      = "dockerd.log"
	socketFile   = "docker.sock"
	// maxSocketPath is the longest path of a unix socket (unix(7)).
	maxSocketPath = 107
)

// Options configure an engine.
type Options struct {
	// Namespace is the network namespace that dockerd and its proxies run in.
	Namespace *netns.Namespace
	// Dir receives the engine's files. Start creates it; its parent has to exist.
	Dir string
	// Cgroup is the name of the control group of the containers, directly below the
	// root of each hierarchy.
	Cgroup string
	// Bridge is the address of Docker's bridge with the prefix length of the
	// containers' network.
	Bridge netip.Prefix
	// NoProxy leaves published ports to firewall rules alone, without Docker's
	// user-land proxy.
	NoProxy bool
}

// Engine is a running dockerd. It ends when its processes are killed: those in its
// network namespace and in its control group.
type Engine struct {
	options Options
	client  string // path of the docker command
	cmd     *exec.Cmd
}

// Start starts dockerd and waits until it answers. The error is a [*debian.MissingError] if
// Docker is not installed. After an error the caller kills the processes that
// are left in the network namespace.
func Start(ctx context.Context, o Options) (_ *Engine, err error) {
	programs, err := findPrograms()
	if err != nil {
		return nil, err
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	socket := filepath.Join(o.Dir, socketFile)
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("path of socket %s is longer than %d bytes", socket, maxSocketPath)
	}
	for _, name := range []string{"", "etc", "opt", "security", "tmp", "data"} {
		if err := os.Mkdir(filepath.Join(o.Dir, name), 0o700); err != nil {
			return nil, err
		}
	}
	if err := linkPrograms(filepath.Join(o.Dir, "bin"), programs); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(o.Dir, "daemon.json"), []byte("{}\n"), 0o600); err != nil {
		return nil, err
	}
	e := &Engine{options: o, client: programs["docker"]}
	if err := e.start(programs["dockerd"]); err != nil {
		return nil, fmt.Errorf("start dockerd: %w", err)
	}
	defer func() {
		if err != nil {
			_ = e.cmd.Process.Kill() // it may have ended
			_ = e.cmd.Wait()
		}
	}()
	if err := e.awaitReady(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// Wait waits until dockerd has ended. Its exit code does not matter.
func (e *Engine) Wait() error {
	err := e.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// start starts the process. The paths in its arguments are those of its own mount
// namespace, see enterMounts.
func (e *Engine) start(program string) error {
	o := e.options
	log, err := os.OpenFile(filepath.Join(o.Dir, logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd = isolated(o.Dir, program,
		"--config-file=/run/daemon.json", "--host=unix:///run/"+socketFile, "--group=root",
		"--data-root=/run/data", "--storage-driver=overlay2", "--exec-root=/run/exec", "--pidfile=/run/docker.pid",
		"--exec-opt=native.cgroupdriver=cgroupfs", "--cgroup-parent=/"+o.Cgroup,
		"--bip="+o.Bridge.String(), fmt.Sprintf("--userland-proxy=%t", !o.NoProxy),
		"--userland-proxy-path=/run/bin/docker-proxy", "--oom-score-adjust=0", "--raw-logs", "--log-level=warn")
	e.cmd.Dir = "/"
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signals from the terminal
	return o.Namespace.Start(e.cmd)
}

// awaitReady waits until dockerd answers. It returns an error if dockerd ends or
// takes too long.
func (e *Engine) awaitReady(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for ; ; time.Sleep(pollInterval) {
		// dockerd may accept a connection long before it answers, or end in between.
		_, err := e.docker(limited, nil, "version")
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case e.ended():
			return fmt.Errorf("dockerd ended: %s", e.logTail())
		case limited.Err() != nil:
			return fmt.Errorf("dockerd is not ready after %v (%s): %w", startTimeout, e.logTail(), err)
		}
	}
}

// ended reports whether dockerd has ended. It leaves the process to be reaped.
func (e *Engine) ended() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, e.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0 || errors.Is(err, unix.ECHILD)
}

// logTail returns the last lines of dockerd's log, joined to one line.
func (e *Engine) logTail() string {
	const count = 3
	text, err := os.ReadFile(filepath.Join(e.options.Dir, logFile))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if lines[0] == "" {
		return "its log is empty"
	}
	return strings.Join(lines[max(0, len(lines)-count):], " | ")
}
