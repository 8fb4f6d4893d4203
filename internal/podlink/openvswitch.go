// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

const (
	// ovsStartTimeout is how long each daemon may take until it answers.
	ovsStartTimeout = 30 * time.Second
	// ovsSchema describes the database.
	ovsSchema = "/usr/share/openvswitch/vswitch.ovsschema"
	// maxSocketPath is the longest path of a unix socket (unix(7)).
	maxSocketPath = 107
)

// OpenVSwitch is a private Open vSwitch: an ovsdb-server and an ovs-vswitchd of
// its own, with everything that they keep in one directory. It is not affected by
// one that the system runs, and does not affect it.
//
// Both are ordinary processes in the network namespace of the host that they
// switch for, and nothing watches them: they live until Stop, or until they are
// killed like any process in that namespace. They outlive the process that
// started them. Their directory is laid out as usual, so with it in OVS_RUNDIR
// Open vSwitch's own commands (ovs-vsctl, ovs-appctl) work.
//
// What switches packets goes with ovs-vswitchd in the user-space datapath; the
// kernel's stays until the namespace ends, unless its bridges are deleted before.
type OpenVSwitch struct {
	dir       string
	datapath  string
	database  *daemon
	switching *daemon
}

// StartOpenVSwitch starts an Open vSwitch that switches for a host, and returns
// when it is ready. It makes the directory (mode 0700), which must not be there
// yet. The path must be short: the sockets in it have the limit of 107 bytes. If
// it fails nothing is left. If Open vSwitch is not installed the error is a
// *MissingProgramError.
//
// Bridges get the kernel's datapath if the kernel has it, otherwise the one in
// user space. In the first ten seconds after boot it waits for these to pass if
// the kernel has a datapath: until then Open vSwitch 3.1.0 takes the machine to
// have no processors, and drops all packets that no flow was installed for.
func StartOpenVSwitch(host *nl.Namespace, dir string) (*OpenVSwitch, error) {
	datapath := OVSUserSpace
	if hasKernelDatapath(host) {
		datapath = OVSKernel
		if err := sinceBoot(10 * time.Second); err != nil {
			return nil, fmt.Errorf("start Open vSwitch in %q: %w", host.Name(), err)
		}
	}
	return newOpenVSwitch(host, dir, datapath)
}

// StartUserSpaceOpenVSwitch is like StartOpenVSwitch, but its bridges get the
// datapath in user space whether or not the kernel has one.
func StartUserSpaceOpenVSwitch(host *nl.Namespace, dir string) (*OpenVSwitch, error) {
	return newOpenVSwitch(host, dir, OVSUserSpace)
}

func newOpenVSwitch(host *nl.Namespace, dir, datapath string) (_ *OpenVSwitch, err error) {
	defer wrap(&err, fmt.Sprintf("start Open vSwitch in %q", host.Name()))
	programs, err := findOVSPrograms()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if socket := OVSDBSocket(dir); len(socket) > maxSocketPath {
		return nil, fmt.Errorf("the path of socket %s has more than %d bytes", socket, maxSocketPath)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	s := &OpenVSwitch{dir: dir, datapath: datapath}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := s.startDatabase(host, programs); err != nil {
		return nil, err
	}
	if err := s.startSwitch(host, programs); err != nil {
		return nil, err
	}
	return s, nil
}

// OVSDBSocket is the socket of the database of an Open vSwitch that was started
// with its files in dir, by this process or another one.
func OVSDBSocket(dir string) string { return filepath.Join(dir, "db.sock") }

// Socket is what Network.OVSDB wants.
func (s *OpenVSwitch) Socket() string { return OVSDBSocket(s.dir) }

// Datapath is the datapath that bridges get: OVSKernel or OVSUserSpace.
func (s *OpenVSwitch) Datapath() string { return s.datapath }

// Stop ends both daemons, waits until they have ended, and removes their
// directory.
func (s *OpenVSwitch) Stop() error {
	var errs []error
	for _, d := range []*daemon{s.switching, s.database} {
		if d != nil {
			errs = append(errs, d.stop())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// startDatabase creates the database and starts its server.
func (s *OpenVSwitch) startDatabase(host *nl.Namespace, programs ovsPrograms) (err error) {
	file := filepath.Join(s.dir, "conf.db")
	output, err := exec.Command(programs.tool, "create", file, ovsSchema).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ovsdb-tool create: %w: %s", err, lastLine(output))
	}
	s.database, err = startDaemon(host, s.dir, programs.server, file, "--remote=punix:"+s.Socket())
	if err != nil {
		return err
	}
	var db *ovsdb
	if err := s.database.await(func() error { db, err = dialOVSDB(s.Socket()); return err }); err != nil {
		return err
	}
	defer db.close()
	_, err = db.transact(ovsdbOp{"op": "insert", "table": ovsdbName, "row": map[string]any{"next_cfg": 1}})
	return err
}

// startSwitch starts ovs-vswitchd, and waits until it has applied the empty
// configuration.
func (s *OpenVSwitch) startSwitch(host *nl.Namespace, programs ovsPrograms) (err error) {
	args := []string{"unix:" + s.Socket()}
	if s.datapath == OVSUserSpace {
		args = append(args, "--disable-system")
	}
	s.switching, err = startDaemon(host, s.dir, programs.vswitchd, args...)
	if err != nil {
		return err
	}
	db, err := dialOVSDB(s.Socket())
	if err != nil {
		return err
	}
	defer db.close()
	// Each try waits a little, and then sees whether the daemon has ended.
	return s.switching.await(func() error { return ovsSwitch{db}.await(1, 50) })
}

// sinceBoot waits until the machine has been running for d.
func sinceBoot(d time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the time since boot: %w", err)
	}
	time.Sleep(d - time.Duration(now.Nano()))
	return nil
}
