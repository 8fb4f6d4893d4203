// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// SetSysctl sets a sysctl of n. The key is its path below /proc/sys, like
// "net/ipv4/ip_forward"; it must be below "net". It is never set outside n,
// except for the few that the kernel has only once for all namespaces.
func (n *Namespace) SetSysctl(key, value string) error {
	file, err := sysctlPath(key)
	if err != nil {
		return err
	}
	err = n.Do(func() error {
		// Not os.WriteFile: without O_CREATE the error for a missing key is clear.
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		if _, err := f.WriteString(value); err != nil {
			_ = f.Close()
			return err
		}
		return f.Close()
	})
	if err != nil {
		return fmt.Errorf("set sysctl %s to %q in network namespace %q: %w", key, value, n.Name(), err)
	}
	return nil
}

// Sysctl is the key of a sysctl, as SetSysctl takes it, with a value.
type Sysctl struct{ Key, Value string }

// SetSysctls sets those sysctls of n that have another value, in one go. One whose
// error may be ignored is left out; nil means none may. If it fails, those before
// stay set.
func (n *Namespace) SetSysctls(sysctls []Sysctl, ignore func(Sysctl, error) bool) error {
	if len(sysctls) == 0 {
		return nil
	}
	return n.Do(func() error {
		for _, s := range sysctls {
			if err := s.set(); err != nil && (ignore == nil || !ignore(s, err)) {
				return fmt.Errorf("set sysctl %s to %q in network namespace %q: %w", s.Key, s.Value, n.Name(), err)
			}
		}
		return nil
	})
}

// set sets a sysctl of the calling thread's namespace, unless it has the value:
// some writes take the kernel's lock of all devices whether or not they change
// anything.
func (s Sysctl) set() error {
	file, err := sysctlPath(s.Key)
	if err != nil {
		return err
	}
	// Not os.OpenFile, which would ask whether the file can be polled.
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

// Sysctl returns a sysctl of n, without the newline at its end. The error
// matches fs.ErrNotExist if this kernel does not have it.
func (n *Namespace) Sysctl(key string) (value string, err error) {
	file, err := sysctlPath(key)
	if err != nil {
		return "", err
	}
	err = n.Do(func() error {
		data, err := os.ReadFile(file)
		value = strings.TrimRight(string(data), "\n")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read sysctl %s in network namespace %q: %w", key, n.Name(), err)
	}
	return value, nil
}

// sysctlPath is the file of a sysctl. The files below /proc/sys/net are those
// of the thread that opens them; all others are the machine's.
func sysctlPath(key string) (string, error) {
	if key != path.Clean(key) || !strings.HasPrefix(key, "net/") || strings.ContainsRune(key, 0) {
		return "", fmt.Errorf("%q is not the path of a network sysctl (like net/ipv4/ip_forward)", key)
	}
	return "/proc/sys/" + key, nil
}
