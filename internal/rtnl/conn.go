// SPDX-License-Identifier: Apache-2.0

// Package rtnl speaks route netlink in a network namespace.
//
// An interrupted dump is repeated. Errors name the device and the namespace.
package rtnl

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

const dumpAttempts = 50 // how often an interrupted dump is repeated

// Handle opens a route netlink handle in the namespace. The caller closes it. It stays in the namespace whichever
// thread uses it, and serves one goroutine.
func (c Conn) Handle() (*netlink.Handle, error) { return c.FamilyHandle(unix.NETLINK_ROUTE) }

// FamilyHandle opens a handle of another netlink family, such as NETLINK_NETFILTER.
func (c Conn) FamilyHandle(family int) (*netlink.Handle, error) {
	handle, err := netns.Get(c.ns, func() (*netlink.Handle, error) { return netlink.NewHandle(family) })
	return handle, c.failed(err, "open netlink socket")
}

func (c Conn) with(do func(*netlink.Handle) error) error {
	handle, err := c.Handle()
	if err != nil {
		return err
	}
	defer handle.Close()
	return do(handle)
}

type change func(*netlink.Handle, netlink.Link) error

// OnDevice calls do with a handle and the device of a name. Errors begin with try, the device and the namespace. If
// the device is missing, they match fs.ErrNotExist.
func (c Conn) OnDevice(try, name string, do change) error {
	find := func(h *netlink.Handle) (netlink.Link, error) { return h.LinkByName(name) }
	return c.onLink(fmt.Sprintf("%sdevice %q", try, name), find, do)
}

func (c Conn) onLink(what string, find func(*netlink.Handle) (netlink.Link, error), do change) error {
	err := c.with(func(handle *netlink.Handle) error {
		link, err := find(handle)
		switch {
		case errors.As(err, &netlink.LinkNotFoundError{}):
			return noDevice{}
		case err != nil:
			return err
		}
		return do(handle, link)
	})
	return c.failed(err, "%s", what)
}

// failed returns the error of an act in the namespace, which format describes; nil if there is none.
func (c Conn) failed(err error, format string, act ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in network namespace %q: %w", fmt.Sprintf(format, act...), c.ns.Name(), err)
}

func (c Conn) request(request *vnl.NetlinkRequest, family int, kind uint16) (messages [][]byte, err error) {
	return netns.Get(c.ns, func() ([][]byte, error) { return request.Execute(family, kind) })
}

func dump[T any](c Conn, what string, list func(*netlink.Handle) ([]T, error)) (all []T, err error) {
	err = c.with(func(handle *netlink.Handle) error {
		all, err = Dump(func() ([]T, error) { return list(handle) })
		return c.failed(err, "list %s", what)
	})
	return all, err
}

func allAddresses(h *netlink.Handle) ([]netlink.Addr, error) { return h.AddrList(nil, unix.AF_UNSPEC) }

func allRoutes(family int) func(*netlink.Handle) ([]netlink.Route, error) {
	return func(h *netlink.Handle) ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	}
}

// Dump repeats list until the result is complete. The kernel marks a dump that changed meanwhile, and signals interrupt
// one.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	var err error
	for range dumpAttempts {
		var all []T
		all, err = list()
		if err == nil {
			return all, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("dump interrupted %d times: %w", dumpAttempts, err)
}

// Conn reads and changes the devices, addresses, routes and sysctls of one network namespace. Its methods may be called
// by several goroutines at once.
type Conn struct{ ns *netns.Namespace }

// In returns a Conn for a namespace. It opens nothing, and needs no Close: each method opens a route netlink socket in
// the namespace and closes it.
func In(ns *netns.Namespace) Conn { return Conn{ns} }

// SetSysctl sets a sysctl of the namespace. The key is the path below /proc/sys and must begin with "net/", like
// "net/ipv4/ip_forward". A few network sysctls exist only once for all namespaces; setting those changes the machine.
// A sysctl that has the value already is not written.
func (c Conn) SetSysctl(key, value string) error { return c.SetSysctls([]Sysctl{{key, value}}, nil) }

// Sysctl is a sysctl's key, as SetSysctl takes it, and its value.
type Sysctl struct{ Key, Value string }

// SetSysctls sets several sysctls in one visit to the namespace. It does not write sysctls that have the value
// already. An error for which ignore returns true is skipped; a nil ignore skips none. After an error the sysctls
// before it stay set.
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
	data, err := netns.Get(c.ns, func() ([]byte, error) { return os.ReadFile(file) })
	return strings.TrimRight(string(data), "\n"), c.failed(err, "read sysctl %s", key)
}

// sysctlPath returns the file of a sysctl. Only files below /proc/sys/net belong to the namespace of the thread that
// opens them.
func sysctlPath(key string) (string, error) {
	if key != path.Clean(key) || !strings.HasPrefix(key, "net/") || strings.ContainsRune(key, 0) {
		return "", fmt.Errorf("invalid network sysctl %q (want a path like net/ipv4/ip_forward)", key)
	}
	return "/proc/sys/" + key, nil
}
