// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// SetSysctl sets a sysctl of the namespace. The key is the path below /proc/sys and must begin with "net/", like
// "net/ipv4/ip_forward". A few network sysctls exist only once for all namespaces; setting those changes the machine.
// A sysctl that has the value already is not written.
func (c Conn) SetSysctl(key, value string) error { return c.SetSysctls([]Sysctl{{key, value}}, nil) }

// Sysctl is a sysctl's key, as SetSysctl takes it, and its value.
type Sysctl struct{ Key, Value string }

// SetSysctls sets several sysctls in one visit to the namespace. It does not write those that have the value already.
// An error for which ignore returns true is skipped; a nil ignore skips none. After an error the sysctls before it stay
// set.
func (c Conn) SetSysctls(sysctls []Sysctl, ignore func(Sysctl, error) bool) error {
	if len(sysctls) == 0 {
		return nil
	}
	return c.ns.Do(func() error {
		for _, s := range sysctls {
			if err := s.set(); err != nil && (ignore == nil || !ignore(s, err)) {
				return fmt.Errorf("set sysctl %s to %q in network namespace %q: %w", s.Key, s.Value, c.ns.Name(), err)
			}
		}
		return nil
	})
}

// set writes the sysctl in the calling thread's namespace, unless it has the value already: some writes take the RTNL
// lock even if they change nothing.
func (s Sysctl) set() error {
	file, err := sysctlPath(s.Key)
	if err != nil {
		return err
	}
	// Not os.OpenFile: it registers the file with the poller.
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	have := make([]byte, len(s.Value)+2)
	if n, err := unix.Pread(fd, have, 0); err == nil && string(have[:n]) == s.Value+"\n" {
		return nil
	}
	if _, err := unix.Pwrite(fd, []byte(s.Value), 0); err != nil {
		return &os.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}

// Sysctl returns the value of a sysctl without the trailing newline. The error matches fs.ErrNotExist if the kernel
// lacks it.
func (c Conn) Sysctl(key string) (value string, err error) {
	file, err := sysctlPath(key)
	if err != nil {
		return "", err
	}
	err = c.ns.Do(func() error {
		data, err := os.ReadFile(file)
		value = strings.TrimRight(string(data), "\n")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read sysctl %s in network namespace %q: %w", key, c.ns.Name(), err)
	}
	return value, nil
}

// sysctlPath returns the file of a sysctl. Only files below /proc/sys/net belong to the namespace of the thread that
// opens them.
func sysctlPath(key string) (string, error) {
	if key != path.Clean(key) || !strings.HasPrefix(key, "net/") || strings.ContainsRune(key, 0) {
		return "", fmt.Errorf("invalid network sysctl %q (want a path like net/ipv4/ip_forward)", key)
	}
	return "/proc/sys/" + key, nil
}
