// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// portTimeout limits the wait for the virtio port, which appears some milliseconds after its driver.
const portTimeout = 20 * time.Second

// IsInit reports whether this process is the first of a guest. It then has to call [Init].
func IsInit() bool { return os.Getpid() == 1 && os.Args[0] == initPath }

// Init is the first process of a guest. It builds the guest's file system, runs the command, sends its output and
// exit code to the host, and powers the guest off. It returns an error only outside of a guest.
//
// configure sets up the network device; nil is enough for guests without one. This package avoids a library for it:
// with a C compiler, a library that needs package net is not static.
func Init(configure func(Network) error) error {
	if !IsInit() {
		return errors.New("not the first process of a guest")
	}
	s := &system{configure: configure}
	if err := s.run(); err != nil {
		// the kernel's console always exists
		fmt.Fprintln(os.Stderr, "mustang:", err)
		if s.frames != nil {
			_ = s.frames.write(frameFailed, []byte(err.Error()))
		}
	}
	if s.port != nil { // usually the host ends the guest before, when it has read the last frame
		time.Sleep(5 * time.Second)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // on failure the kernel panics, which ends the guest too
	return nil
}

type system struct {
	configure func(Network) error
	config    guestConfig
	port      *os.File
	frames    *frameWriter
}

func (s *system) run() error {
	text, err := os.ReadFile(configPath)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &s.config); err != nil {
		return fmt.Errorf("read %s: %w", configPath, err)
	}
	if err := mountAll(kernelMounts...); err != nil {
		return err
	}
	for _, file := range s.config.Insert {
		data, err := os.ReadFile(modulePath + file)
		if err != nil {
			return err
		}
		if err := unix.InitModule(data, ""); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load kernel module %s: %w", file, err)
		}
	}
	for _, step := range []func() error{s.openPort, s.enterRoot, s.populateRoot, s.network} {
		if err := step(); err != nil {
			return err
		}
	}
	code, err := s.command()
	if err != nil {
		return err
	}
	unix.Sync()
	for _, m := range s.config.Mounts {
		if m.Writable { // writes it back to the host
			_ = unix.Unmount(m.Path, unix.MNT_DETACH) // synced already
		}
	}
	return s.frames.write(frameExited, []byte{code})
}

func (s *system) openPort() error {
	for deadline := time.Now().Add(portTimeout); ; time.Sleep(time.Millisecond) {
		files, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, file := range files {
			if name, _ := os.ReadFile(file); strings.TrimSpace(string(name)) == portName {
				var err error
				s.port, err = os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(file))), os.O_RDWR, 0)
				s.frames = &frameWriter{w: s.port}
				return err
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no virtio port %q after %v", portName, portTimeout)
		}
	}
}

// Exit codes of commands that did not start, as in shells.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the number of the signal
)

// command runs the command and returns its exit code. When the command ends it kills all other processes.
func (s *system) command() (code byte, err error) {
	for _, variable := range s.config.Env {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			_ = os.Setenv("PATH", path) // where Command searches
		}
	}
	cmd := exec.Command(s.config.Command[0], s.config.Command[1:]...)
	cmd.Dir, cmd.Env = s.config.Dir, s.config.Env
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	var input io.WriteCloser
	if s.config.Input {
		if input, err = cmd.StdinPipe(); err != nil {
			return 0, err
		}
	}
	cmd.Stdout, cmd.Stderr = stream{s.frames, frameStdout}, stream{s.frames, frameStderr}
	if err := s.frames.write(frameStarted, nil); err != nil {
		return 0, fmt.Errorf("notify the host: %w", err)
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(cmd.Stderr, "run in a guest: %v\n", err)
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return exitNotFound, nil
		}
		return exitNotExecutable, nil
	}
	go s.handleHost(cmd.Process.Pid, input)
	code, err = reap(cmd.Process.Pid)
	// Other processes would keep the pipes open.
	if killErr := unix.Kill(-1, unix.SIGKILL); killErr != nil && !errors.Is(killErr, unix.ESRCH) {
		err = errors.Join(err, fmt.Errorf("kill processes of the command: %w", killErr))
	}
	_ = cmd.Wait() // copies the rest of the output
	return code, err
}

func (s *system) handleHost(pid int, input io.WriteCloser) {
	r := bufio.NewReaderSize(s.port, 64<<10)
	for {
		f, err := readFrame(r)
		switch {
		case err != nil:
			return // the guest ends with the host
		case f.what == frameSignal && len(f.data) == 1:
			_ = unix.Kill(pid, unix.Signal(f.data[0])) // it may have ended
		case f.what == frameStdin && len(f.data) == 0:
			_ = input.Close()
		case f.what == frameStdin:
			_, _ = input.Write(f.data) // dropped if the command has closed it
		}
	}
}

func reap(command int) (byte, error) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the command: %w", err)
		case pid != command:
		case status.Signaled():
			return exitSignal + byte(status.Signal()), nil
		default:
			return byte(status.ExitStatus()), nil
		}
	}
}
