// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// process is a program that a guest is made of. It dies with the thread that
// started it, so that thread must stay (runtime.LockOSThread), and gets no
// signals of the terminal.
type process struct {
	name   string
	cmd    *exec.Cmd
	stderr *tail
	done   chan struct{} // closed when it has ended
}

// program is how a process is started.
type program struct {
	path  string
	args  []string
	files []*os.File
}

// pass adds a file that the program inherits, and returns its number there.
func (p *program) pass(file *os.File) string {
	p.files = append(p.files, file)
	return strconv.Itoa(2 + len(p.files))
}

func (p *program) start() (*process, error) {
	child := &process{stderr: &tail{}, done: make(chan struct{})}
	child.cmd = exec.Command(p.path, p.args...)
	child.name = child.cmd.Path
	child.cmd.ExtraFiles = p.files
	child.cmd.Stdout, child.cmd.Stderr = child.stderr, child.stderr
	child.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if err := child.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	go func() {
		defer close(child.done)
		_ = child.cmd.Wait() // how it ended is told by what it wrote
	}()
	return child, nil
}

// kill ends the process and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error means that it is gone
	<-p.done
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
	also io.Writer // gets everything; or nil
}

// tailSize is how many bytes a tail keeps, at least.
const tailSize = 16 << 10

// Write implements io.Writer.
func (t *tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.also != nil {
		_, _ = t.also.Write(data) // a copy for the user: the guest goes on without it
	}
	t.data = append(t.data, data...)
	if len(t.data) > 2*tailSize {
		t.data = append(t.data[:0], t.data[len(t.data)-tailSize:]...)
	}
	return len(data), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

// socketPair returns two connected stream sockets.
func socketPair(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}
