// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/distro"
	"mustang/internal/netns"
)

const (
	startTimeout  = 30 * time.Second // until a daemon answers
	stopTimeout   = 5 * time.Second  // until a daemon ends after a signal
	pollInterval  = 2 * time.Millisecond
	schemaFile    = "/usr/share/openvswitch/vswitch.ovsschema"
	debianPackage = "openvswitch-switch" // has all programs of Open vSwitch
	maxSocketPath = 107                  // the longest path of a unix socket (unix(7))
)

// Instance is a private Open vSwitch: an ovsdb-server and an ovs-vswitchd with all their files in one directory. It
// neither affects nor uses the system's. Both processes are in the network namespace of the host that they switch for,
// outlive the process that started them, and end with Stop or a signal. With the directory in OVS_RUNDIR, commands such
// as ovs-vsctl work. The kernel's datapath ends with the namespace or with its last bridge.
type Instance struct {
	dir       string
	datapath  string
	database  *daemon
	switching *daemon
}

// Start starts an Open vSwitch for a host and returns when it is ready. It creates the directory (mode 0700), whose
// sockets' paths must not exceed 107 bytes. An empty datapath is Kernel if the kernel has it, otherwise UserSpace.
// After an error nothing is left. If Open vSwitch is not installed the error names the Debian package.
//
// With the kernel's datapath, Start waits until the machine has been up for ten seconds. Before that, Open vSwitch
// 3.1.0 counts no processors, and drops all packets without a flow.
func Start(host *netns.Namespace, dir, datapath string) (_ *Instance, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start Open vSwitch in %q: %w", host.Name(), err)
		}
	}()
	i := &Instance{datapath: datapath}
	if i.datapath == "" {
		i.datapath = UserSpace
		if CheckKernel(host) == nil {
			i.datapath = Kernel
		}
	}
	if i.datapath == Kernel {
		if err := awaitUptime(10 * time.Second); err != nil {
			return nil, err
		}
	}
	programs, err := findPrograms()
	if err != nil {
		return nil, err
	}
	if i.dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if len(i.Socket()) > maxSocketPath {
		return nil, fmt.Errorf("path of socket %s has more than %d bytes", i.Socket(), maxSocketPath)
	}
	if strings.Contains(i.dir, ",") {
		return nil, fmt.Errorf("path %q has a comma, which separates sockets for Open vSwitch", i.dir)
	}
	if err := os.Mkdir(i.dir, 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.Stop())
		}
	}()
	if err := i.startDatabase(host, programs); err != nil {
		return nil, err
	}
	return i, i.startSwitch(host, programs)
}

// Socket returns the unix socket of the database, for Open.
func (i *Instance) Socket() string { return Socket(i.dir) }

// Socket returns the unix socket of the database of an Instance with its files in dir.
func Socket(dir string) string { return filepath.Join(dir, "db.sock") }

// Datapath returns the datapath of new bridges: Kernel or UserSpace.
func (i *Instance) Datapath() string { return i.datapath }

// Stop ends both daemons, waits for them, and removes their directory.
func (i *Instance) Stop() error {
	var errs []error
	for _, d := range []*daemon{i.switching, i.database} {
		if d != nil {
			errs = append(errs, d.stop())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(i.dir))...)
}

func (i *Instance) startDatabase(host *netns.Namespace, programs map[string]string) (err error) {
	file := filepath.Join(i.dir, "conf.db")
	output, err := exec.Command(programs["ovsdb-tool"], "create", file, schemaFile).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ovsdb-tool create: %w: %s", err, lastLine(output))
	}
	i.database, err = startDaemon(host, i.dir, programs["ovsdb-server"], file, "--remote=punix:"+i.Socket())
	if err != nil {
		return err
	}
	var db *database
	if err := i.database.await(func() error { db, err = dial(i.Socket()); return err }); err != nil {
		return err
	}
	defer db.close()
	_, err = db.transact(operation{"op": "insert", "table": databaseName, "row": row{"next_cfg": 1}})
	return err
}

// startSwitch starts ovs-vswitchd and waits until it has applied the empty configuration.
func (i *Instance) startSwitch(host *netns.Namespace, programs map[string]string) (err error) {
	args := []string{"unix:" + i.Socket()}
	if i.datapath == UserSpace {
		args = append(args, "--disable-system")
	}
	i.switching, err = startDaemon(host, i.dir, programs["ovs-vswitchd"], args...)
	if err != nil {
		return err
	}
	s, err := Open(i.Socket())
	if err != nil {
		return err
	}
	defer s.Close()
	// Each try waits for 50 ms in the database, then await checks that the daemon runs.
	return i.switching.await(func() error { return s.await(1, 50) })
}

func awaitUptime(d time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the time since boot: %w", err)
	}
	time.Sleep(d - time.Duration(now.Nano()))
	return nil
}

// FindPrograms returns a [*distro.MissingError] if a program that Start needs is not installed.
func FindPrograms() error {
	_, err := findPrograms()
	return err
}

func findPrograms() (found map[string]string, err error) {
	found = map[string]string{}
	for _, name := range []string{"ovs-vswitchd", "ovsdb-server", "ovsdb-tool"} {
		found[name], err = distro.Find(name, debianPackage, "", "/usr/sbin", "/usr/bin", "/usr/lib/openvswitch-switch")
		if err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(schemaFile); errors.Is(err, fs.ErrNotExist) {
		return nil, distro.Missing(schemaFile, debianPackage)
	}
	return found, nil
}

type daemon struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{} // closed when it has
}

func startDaemon(host *netns.Namespace, dir, program string, args ...string) (*daemon, error) {
	name := filepath.Base(program)
	d := &daemon{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	// Output before the daemon opens its log goes there too.
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
		_ = d.cmd.Wait() // its log has the reason
		close(d.ended)
	}()
	return d, nil
}

// await calls ready until it returns nil. It returns an error if the daemon ends or is not ready in time.
func (d *daemon) await(ready func() error) error {
	for deadline := time.Now().Add(startTimeout); ; {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-d.ended:
			return fmt.Errorf("%s ended (%v): %s", d.name, d.cmd.ProcessState, d.lastLog())
		case <-time.After(pollInterval):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %v (%s): %w", d.name, startTimeout, d.lastLog(), err)
		}
	}
}

func (d *daemon) stop() error {
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := d.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("end %s: %w", d.name, err)
		}
		select {
		case <-d.ended:
			return nil
		case <-time.After(stopTimeout):
		}
	}
	return fmt.Errorf("%s (pid %d) survives SIGKILL", d.name, d.cmd.Process.Pid)
}

func (d *daemon) lastLog() string {
	log, _ := os.ReadFile(d.log)
	return lastLine(log)
}

func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}
