// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"mustang/internal/nl"
)

const (
	// ovsPackage is the Debian package with all programs of Open vSwitch.
	ovsPackage = "openvswitch-switch"
	// ovsStopTimeout is how long a daemon may take to end when asked to.
	ovsStopTimeout = 5 * time.Second
	daemonPoll     = 2 * time.Millisecond
)

// MissingProgramError says that a program is not installed.
type MissingProgramError struct {
	Program string // like "ovs-vswitchd", or the path of a file
	Package string // the Debian package that has it
}

func (e *MissingProgramError) Error() string {
	return fmt.Sprintf("%s is not installed (Debian package %s)", e.Program, e.Package)
}

// ovsPrograms are the paths of the programs that make an Open vSwitch.
type ovsPrograms struct{ tool, server, vswitchd string }

// FindOpenVSwitch returns nil if StartOpenVSwitch has all the programs that it
// needs, otherwise a *MissingProgramError.
func FindOpenVSwitch() error {
	_, err := findOVSPrograms()
	return err
}

func findOVSPrograms() (ovsPrograms, error) {
	var out ovsPrograms
	for name, path := range map[string]*string{
		"ovsdb-tool": &out.tool, "ovsdb-server": &out.server, "ovs-vswitchd": &out.vswitchd,
	} {
		if *path = findProgram(name); *path == "" {
			return ovsPrograms{}, &MissingProgramError{Program: name, Package: ovsPackage}
		}
	}
	if _, err := os.Stat(ovsSchema); errors.Is(err, fs.ErrNotExist) {
		return ovsPrograms{}, &MissingProgramError{Program: ovsSchema, Package: ovsPackage}
	}
	return out, nil
}

// findProgram looks where Debian installs programs if the PATH, which often
// lacks sbin, does not lead to one. It is empty if there is none.
func findProgram(name string) string {
	for _, dir := range []string{"", "/usr/sbin", "/usr/bin", "/usr/lib/openvswitch-switch"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	return ""
}

// daemon is a running process of Open vSwitch.
type daemon struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{} // closed when it has
}

// startDaemon starts a program in a network namespace, with all its files in
// dir. It is in a session of its own, so that it gets no signal from our terminal.
func startDaemon(host *nl.Namespace, dir, program string, args ...string) (*daemon, error) {
	name := filepath.Base(program)
	d := &daemon{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	// What it says before it opens its log goes there too.
	log, err := os.OpenFile(d.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.cmd = exec.Command(program, append(args, "--pidfile", "--log-file="+d.log, "-vconsole:off", "-vsyslog:off")...)
	d.cmd.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir, "OVS_DBDIR="+dir, "OVS_SYSCONFDIR="+dir)
	d.cmd.Dir = dir
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := host.Start(d.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = d.cmd.Wait() // how it ended is in its log
		close(d.ended)
	}()
	return d, nil
}

// await calls ready until it returns nil. It is an error if the daemon ends, or
// is not ready in time.
func (d *daemon) await(ready func() error) error {
	for deadline := time.Now().Add(ovsStartTimeout); ; {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-d.ended:
			return fmt.Errorf("%s ended (%v): %s", d.name, d.cmd.ProcessState, d.lastWords())
		case <-time.After(daemonPoll):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %v (%s): %w", d.name, ovsStartTimeout, d.lastWords(), err)
		}
	}
}

// stop asks the daemon to end, and kills it if it does not.
func (d *daemon) stop() error {
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := d.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("end %s: %w", d.name, err)
		}
		select {
		case <-d.ended:
			return nil
		case <-time.After(ovsStopTimeout):
		}
	}
	return fmt.Errorf("%s (pid %d) outlives kill -9", d.name, d.cmd.Process.Pid)
}

// lastWords is the last line of the daemon's log.
func (d *daemon) lastWords() string {
	log, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return lastLine(log)
}

// lastLine is the last line of a text that is not empty.
func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}
