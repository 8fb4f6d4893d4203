// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// portTimeout is how long the guest waits for its virtio port, which appears
// some milliseconds after its driver.
const portTimeout = 20 * time.Second

// IsInit reports whether this process is the first of a guest, so that all that
// it has to do is to call [Init].
func IsInit() bool { return os.Getpid() == 1 && os.Args[0] == initPath }

// Init is the first process of a guest: it builds the guest's file system, runs
// the command, passes on its output and its exit code, and switches the guest
// off. It returns an error only outside of a guest.
//
// configure sets a network device up, see lab.ConfigureGuest; nil does for guests
// without one.
func Init(configure func(Interior) error) error {
	if !IsInit() {
		return errors.New("this is not the first process of a guest")
	}
	g := &guest{configure: configure}
	if err := g.run(); err != nil {
		// to the kernel's console, which is always there
		fmt.Fprintln(os.Stderr, "mustang:", err)
		if g.frames != nil {
			_ = g.frames.write(frameFailed, []byte(err.Error()))
		}
	}
	g.powerOff()
	return nil
}

// guest is the state of the first process.
type guest struct {
	configure func(Interior) error
	orders    order
	port      *os.File
	frames    *frameWriter
}

// run does everything from the mounts to the command's end.
func (g *guest) run() error {
	text, err := os.ReadFile(orderPath)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &g.orders); err != nil {
		return fmt.Errorf("read %s: %w", orderPath, err)
	}
	if err := mountAll(kernelMounts); err != nil {
		return err
	}
	for _, file := range g.orders.Insert {
		if err := insert(modulePath + file); err != nil {
			return err
		}
	}
	if err := g.openPort(); err != nil {
		return err
	}
	if err := g.enterRoot(); err != nil {
		return err
	}
	if err := g.furnish(); err != nil {
		return err
	}
	if err := g.network(); err != nil {
		return err
	}
	code, err := g.command()
	if err != nil {
		return err
	}
	g.flush()
	return g.frames.write(frameExited, []byte{code})
}

// insert loads a kernel module.
func insert(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := unix.InitModule(data, ""); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load kernel module %s: %w", filepath.Base(path), err)
	}
	return nil
}

// openPort opens the virtio port that leads to the host.
func (g *guest) openPort() error {
	for deadline := time.Now().Add(portTimeout); ; time.Sleep(time.Millisecond) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return err
		}
		for _, file := range names {
			name, err := os.ReadFile(file)
			if err != nil || strings.TrimSpace(string(name)) != portName {
				continue
			}
			path := filepath.Join("/dev", filepath.Base(filepath.Dir(file)))
			if g.port, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
				return err
			}
			g.frames = &frameWriter{w: g.port}
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no virtio port %q after %v", portName, portTimeout)
		}
	}
}

// flush makes sure that what was written to the shared directory is on the host.
func (g *guest) flush() {
	unix.Sync()
	for _, m := range g.orders.Mounts {
		if m.Writable {
			_ = unix.Unmount(m.Path, unix.MNT_DETACH) // synced already
		}
	}
}

// powerOff switches the guest off. The host does so first, once it has read the
// last frame; this is for a host that does not.
func (g *guest) powerOff() {
	if g.port != nil {
		time.Sleep(5 * time.Second)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // if that fails the kernel panics, which ends the guest too
}
