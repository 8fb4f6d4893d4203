// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"cmp"
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

type fileSystem struct {
	kind, path, options string
	tag                 string // the source, if it has a name
	flags               uintptr
	optional            bool // not in every kernel
}

var kernelMounts = []fileSystem{
	{kind: "proc", path: "/proc"},
	{kind: "sysfs", path: "/sys"},
	{kind: "devtmpfs", path: "/dev"},
}

var guestMounts = []fileSystem{
	{kind: "tmpfs", path: "/run", options: "mode=0755"},
	{kind: "tmpfs", path: "/dev/shm", options: "mode=1777"},
	{kind: "devpts", path: "/dev/pts", options: "ptmxmode=0666"},
	{kind: "cgroup2", path: "/sys/fs/cgroup"},
	{kind: "bpf", path: "/sys/fs/bpf", options: "mode=0700"},
	{kind: "tracefs", path: "/sys/kernel/tracing"},
	{kind: "debugfs", path: "/sys/kernel/debug", optional: true},
}

func mountAll(list ...fileSystem) error {
	for _, f := range list {
		// /sys has its directories and does not allow others
		if err := os.MkdirAll(f.path, 0o755); err != nil && !f.optional {
			return fmt.Errorf("mount %s: %w", f.path, err)
		}
		f.tag = cmp.Or(f.tag, f.kind)
		if err := unix.Mount(f.tag, f.path, f.kind, f.flags, f.options); err != nil && !f.optional {
			return fmt.Errorf("mount %s on %s: %w", f.tag, f.path, err)
		}
	}
	return nil
}

const newRoot = "/root"

// enterRoot switches to a root of the host's directories, each below an overlay in memory for writes. A bare guest,
// without such directories, stays in the initramfs.
func (s *system) enterRoot() error {
	if len(s.config.Mounts) == 0 {
		return nil
	}
	if err := mountAll(fileSystem{kind: "tmpfs", path: "/upper", options: "size=50%,mode=0755"}); err != nil {
		return err
	}
	var list []fileSystem
	for i, m := range s.config.Mounts {
		if m.Writable {
			continue
		}
		lower, upper, work := fmt.Sprintf("/lower/%d", i), fmt.Sprintf("/upper/%d/up", i), fmt.Sprintf("/upper/%d/work", i)
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
			return err
		}
		list = append(list, fileSystem{kind: "virtiofs", tag: m.Tag, path: lower, flags: unix.MS_RDONLY},
			fileSystem{kind: "overlay", path: filepath.Join(newRoot, m.Path),
				options: "lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + work})
	}
	for _, f := range kernelMounts {
		list = append(list, fileSystem{tag: f.path, path: newRoot + f.path, flags: unix.MS_MOVE})
	}
	if err := mountAll(list...); err != nil {
		return err
	}
	// frees the memory of the old root
	if err := errors.Join(os.RemoveAll(modulePath), os.Remove(initPath)); err != nil {
		return err
	}
	if err := unix.Chdir(newRoot); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the new root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change to the new root: %w", err)
	}
	return unix.Chdir("/")
}

func (s *system) populateRoot() error {
	list := guestMounts
	for _, m := range s.config.Mounts {
		if m.Writable {
			list = append(list, fileSystem{kind: "virtiofs", tag: m.Tag, path: m.Path})
		}
	}
	if len(s.config.Mounts) > 0 { // where the kernel looks for modules
		modules := filepath.Join("/lib/modules", filepath.Base(s.config.Modules))
		list = append(list, fileSystem{tag: s.config.Modules, path: modules, flags: unix.MS_BIND})
	}
	if err := mountAll(list...); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("guest")); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	return loopbackUp()
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	defer unix.Close(fd)
	request, _ := unix.NewIfreq("lo")
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}
