// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Exit codes of commands that were not started, as shells give them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // and the signal's number
)

// command runs the command and returns its exit code. When the command ends,
// all other processes are ended too.
func (g *guest) command() (code byte, err error) {
	for _, variable := range g.orders.Env {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil {
				return 0, err
			}
		}
	}
	cmd := exec.Command(g.orders.Command[0], g.orders.Command[1:]...)
	cmd.Dir, cmd.Env = g.orders.Dir, g.orders.Env
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	var copies sync.WaitGroup
	var ends []io.Closer
	input := make(chan []byte, 1)
	if g.orders.Input {
		r, w, err := os.Pipe()
		if err != nil {
			return 0, fmt.Errorf("make a pipe: %w", err)
		}
		cmd.Stdin = r
		ends = append(ends, r)
		go g.passInput(input, w)
	}
	for _, out := range []struct {
		file *io.Writer
		what kind
	}{{&cmd.Stdout, frameStdout}, {&cmd.Stderr, frameStderr}} {
		r, w, err := os.Pipe()
		if err != nil {
			return 0, fmt.Errorf("make a pipe: %w", err)
		}
		*out.file = w
		ends = append(ends, w)
		copies.Go(func() {
			_, _ = io.Copy(stream{g.frames, out.what}, r) // a host that is gone ends the guest
		})
	}
	if err := g.frames.write(frameStarted, nil); err != nil {
		return 0, fmt.Errorf("tell the host: %w", err)
	}
	startErr := cmd.Start()
	for _, end := range ends {
		_ = end.Close()
	}
	if startErr != nil {
		fmt.Fprintf(stream{g.frames, frameStderr}, "run in a guest: %v\n", startErr)
		if errors.Is(startErr, exec.ErrNotFound) || errors.Is(startErr, fs.ErrNotExist) {
			return exitNotFound, nil
		}
		return exitNotExecutable, nil
	}
	go g.obey(cmd.Process.Pid, input)
	code, err = reap(cmd.Process.Pid)
	// What else runs would hold the pipes open.
	if killErr := unix.Kill(-1, unix.SIGKILL); killErr != nil && !errors.Is(killErr, unix.ESRCH) {
		err = errors.Join(err, fmt.Errorf("end what the command left: %w", killErr))
	}
	copies.Wait()
	return code, err
}

// obey sends the command what the host has for it: signals and input.
func (g *guest) obey(pid int, input chan<- []byte) {
	r := bufio.NewReaderSize(g.port, 64<<10)
	for {
		f, err := readFrame(r)
		if err != nil {
			return // the host is gone, and with it the guest
		}
		switch {
		case f.what == frameStdin:
			input <- f.data // the host waits until it is taken
		case f.what == frameSignal && len(f.data) == 1:
			_ = unix.Kill(pid, unix.Signal(f.data[0])) // it may have ended
		}
	}
}

// passInput writes what comes to the command's input, and tells the host when the
// command has it. What a command does not want is dropped.
func (g *guest) passInput(input <-chan []byte, w io.WriteCloser) {
	for data := range input {
		if len(data) == 0 {
			_ = w.Close()
		} else {
			_, _ = w.Write(data)
		}
		_ = g.frames.write(frameTaken, nil)
	}
}

// reap waits for all children, as the first process must, until the command has
// ended, and returns its exit code.
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
