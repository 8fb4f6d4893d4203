// SPDX-License-Identifier: Apache-2.0

// Package record stores the attachments of the CNI plugin as files.
//
// The store is a directory with one directory for each network. A network has a record for each attachment, and one for
// the shared objects of its pods. The process that works on an attachment holds a lock (flock) on its record, which the
// kernel releases when the process ends.
package record

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/ipam"
	"mustang/internal/lock"
	"mustang/internal/podlink"
	"mustang/internal/service"
)

const attachmentsDir, recordSuffix, networkFile = "attachments", ".record", "network.json"

const maxNames = 200 // bytes of network, container and interface, which become names of files

// ErrTooLong is the error of an attachment with names too long for file names. ADD never created one.
var ErrTooLong = errors.New("name too long")

// Store is a directory of records. Any number of processes can use it.
type Store struct {
	Root string
}

func (s Store) dir(network string) string { return filepath.Join(s.Root, network, attachmentsDir) }

// Path returns the path of the record of an attachment.
func (s Store) Path(network string, o Owner) string {
	return filepath.Join(s.dir(network), o.ContainerID+"@"+o.IfName+recordSuffix)
}

// Open locks the record of an attachment and reads it. If it is missing, create makes a new one with an empty Boot;
// otherwise the error matches fs.ErrNotExist. It matches [ErrTooLong] if the names are too long.
func (s Store) Open(network string, o Owner, create bool) (*Record, error) {
	if n := len(network + o.ContainerID + o.IfName); n > maxNames {
		return nil, fmt.Errorf("%s of network %q: %w: network, container ID and interface have %d bytes, want %d at most",
			o, network, ErrTooLong, n, maxNames)
	}
	flags := os.O_RDWR | os.O_APPEND
	if create {
		if err := os.MkdirAll(s.dir(network), 0o700); err != nil {
			return nil, fmt.Errorf("create record of %s: %w", o, err)
		}
		flags |= os.O_CREATE
	}
	for {
		file, err := os.OpenFile(s.Path(network, o), flags, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open record of %s: %w", o, err)
		}
		var stat unix.Stat_t
		err = lock.File(file, unix.LOCK_EX, lock.Timeout)
		if err == nil {
			err = unix.Fstat(int(file.Fd()), &stat)
		}
		var data []byte
		if err == nil {
			data, err = io.ReadAll(file)
		}
		if err == nil && stat.Nlink > 0 { // without a complete line it is a new record
			r, _ := parse(data, network, o)
			r.Network, r.Owner, r.file = network, o, file
			return &r, nil
		}
		_ = file.Close() // it was removed meanwhile
		if err != nil {
			return nil, fmt.Errorf("record of %s: %w", o, err)
		}
	}
}

// Owners lists the attachments of a network that have a record.
func (s Store) Owners(network string) (out []Owner) {
	paths, _ := filepath.Glob(s.Path(network, Owner{ContainerID: "*", IfName: "*"})) // a valid pattern
	for _, path := range paths {
		out = append(out, ownerOf(path))
	}
	return out
}

func ownerOf(path string) (o Owner) { // no container ID contains an "@"
	o.ContainerID, o.IfName, _ = strings.Cut(strings.TrimSuffix(filepath.Base(path), recordSuffix), "@")
	return o
}

// List reads the records of a container in all networks, or of all containers if the ID is empty, without locks.
// Damaged records are omitted. The error joins the errors of unreadable files.
func (s Store) List(containerID string) (out []Record, err error) {
	pattern := s.Path("*", Owner{ContainerID: cmp.Or(containerID, "*"), IfName: "*"})
	paths, _ := filepath.Glob(pattern) // a valid pattern
	var errs []error
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		if r, ok := parse(data, filepath.Base(filepath.Dir(filepath.Dir(path))), ownerOf(path)); ok {
			out = append(out, r)
		}
	}
	return out, errors.Join(errs...)
}

// Network describes the shared objects of a network's pods on the host.
type Network struct {
	Boot    string `json:"boot"`   // the boot ID for which the record is valid
	Digest  string `json:"digest"` // of the configuration for which the record is valid
	Segment        // of all pods
	BigTCP  bool   `json:"big_tcp,omitempty"`      // allows packets of up to 256 KiB
	BigTCP6 bool   `json:"big_tcp_ipv6,omitempty"` // also by IPv6
	Created int    `json:"created,omitempty"`      // the index of the gateways' device if the plugin has created it
}

// Networks returns the names of the networks.
func (s Store) Networks() (names []string) {
	entries, _ := os.ReadDir(s.Root) // there may be none
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

// Network reads the record of a network; ok is false if it is missing or invalid.
func (s Store) Network(name string) (n Network, ok bool) {
	data, err := os.ReadFile(filepath.Join(s.Root, name, networkFile))
	if err != nil || json.Unmarshal(data, &n) != nil || slices.Contains(n.Routers, netip.Addr{}) ||
		slices.ContainsFunc(n.Gateways, func(p netip.Prefix) bool { return !p.IsValid() || p.Addr().Is4In6() }) {
		return Network{}, false
	}
	return n, true
}

// SaveNetwork replaces the record of a network. The caller holds its lock.
func (s Store) SaveNetwork(name string, n Network) error {
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	path := filepath.Join(s.Root, name, networkFile)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return os.Rename(path+".new", path)
}

// Names of locks, beside the names of networks. A process that needs two locks takes its network's lock first.
const (
	// Ports protects the host ports and uplinks of all networks.
	Ports = "."
	// Gateways protects the gateways of all networks. A shared lock protects finding and adding gateways from removal.
	Gateways = ".gateways"
)

// Lock waits for the lock of a network, or of [Ports] or [Gateways].
func (s Store) Lock(name string) (unlock func(), err error) { return s.lock(name, unix.LOCK_EX) }

// Share waits for the same lock as a shared lock.
func (s Store) Share(name string) (unlock func(), err error) { return s.lock(name, unix.LOCK_SH) }

func (s Store) lock(name string, how int) (unlock func(), err error) {
	dir := filepath.Join(s.Root, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.Open(dir)
	if err == nil {
		err = lock.File(file, how, lock.Timeout)
	}
	if err != nil {
		_ = file.Close() // nil if it is missing
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}

// CheckWritable returns an error if the records of a network cannot be written.
func (s Store) CheckWritable(network string) error { return CheckWritable(s.dir(network)) }

// CheckWritable returns an error if no file can be written in a directory, or the directory cannot be created. It
// writes one block to an unnamed file (O_TMPFILE), which detects full disks and leaves nothing. File systems that lack
// unnamed files, such as NFS, are not checked.
func CheckWritable(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	switch {
	case errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir):
		return CheckWritable(filepath.Dir(dir)) // ADD creates it there
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil
	case err == nil:
		file := os.NewFile(uintptr(fd), dir)
		_, err = file.Write(make([]byte, os.Getpagesize()))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	return nil
}

// Segment is the place of pods on the host.
type Segment struct {
	Link     string         `json:"link,omitempty"`   // the link mode
	Parent   string         `json:"parent,omitempty"` // the host's uplink
	Bridge   string         `json:"bridge,omitempty"`
	OVSDB    string         `json:"ovsdb,omitempty"`
	MTU      int            `json:"mtu,omitempty"`
	Gateways []netip.Prefix `json:"gateways,omitempty"` // the host's own addresses for the pods
	Routers  []netip.Addr   `json:"routers,omitempty"`  // other gateways; if there are any, the host routes to the pods
}

// Record describes an attachment. ADD saves each field before it creates the object that the field describes.
type Record struct {
	Network string `json:"-"` // its name
	Owner   Owner  `json:"owner"`
	Boot    string `json:"boot"`             // boot ID of the ADD; empty in a new record. No attachment survives a reboot.
	Netns   string `json:"netns"`            // path of the pod's network namespace
	Cookie  uint64 `json:"cookie,omitempty"` // of the namespace
	Segment        // empty until ADD has selected it, and in a chained plugin

	HostIfName string          `json:"host_ifname,omitempty"` // the host device; empty in a chained plugin
	IPAM       string          `json:"ipam,omitempty"`        // type of address management
	Pod        string          `json:"pod,omitempty"`         // NAMESPACE/NAME in Kubernetes
	Linked     bool            `json:"linked,omitempty"`      // a link may exist
	Routes     []podlink.Route `json:"routes,omitempty"`      // additional routes of the pod
	Secondary  bool            `json:"secondary,omitempty"`   // the pod gets no default routes by this device
	Leased     bool            `json:"leased,omitempty"`      // addresses may be reserved
	Addresses  []netip.Addr    `json:"addresses,omitempty"`
	Endpoint   bool            `json:"endpoint,omitempty"` // the pod may be an endpoint of the datapath
	Guarded    bool            `json:"guarded,omitempty"`  // a source guard may be attached, without an endpoint
	Admitted   bool            `json:"admitted,omitempty"` // the sockets of the pod may be enabled

	Ports  []service.Service `json:"ports,omitempty"`  // of the host ports
	Uplink string            `json:"uplink,omitempty"` // of the datapath, which serves the host ports
	Done   bool              `json:"done,omitempty"`   // ADD has finished

	file *os.File // locked
}

// Same reports whether another record is of the same attachment.
func (r *Record) Same(other Record) bool { return r.Network == other.Network && r.Owner == other.Owner }

// Save appends the record to its file as one line. A line that is cut short is ignored, and the previous line counts.
func (r *Record) Save() error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := r.file.Write(slices.Concat([]byte("\n"), line, []byte("\n"))); err != nil {
		return fmt.Errorf("save record of %s: %w", r.Owner, err)
	}
	return nil
}

// Remove deletes the file. The record stays locked.
func (r *Record) Remove() error {
	if err := os.Remove(r.file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of %s: %w", r.Owner, err)
	}
	return nil
}

// Close releases the lock.
func (r *Record) Close() { _ = r.file.Close() }

// parse decodes the last complete line; ok is false if there is none. It ignores a line of another attachment or with a
// foreign device, since DEL deletes the objects in the record.
func parse(data []byte, network string, o Owner) (r Record, ok bool) {
	for _, line := range slices.Backward(bytes.Split(data, []byte("\n"))) {
		var out Record
		if len(line) > 0 && json.Unmarshal(line, &out) == nil && out.Owner == o &&
			(out.HostIfName == "" || out.HostIfName == DeviceName(network, o)) {
			out.Network = network
			return out, true
		}
	}
	return r, false
}

// Owner identifies an attachment within its network.
type Owner = ipam.Owner

// DevicePrefix returns the first 7 characters of the names of the host devices of a network.
func DevicePrefix(network string) string { return "mst" + Digest(network, 4) }

// DeviceName returns the name of the host device, 15 characters long (IFNAMSIZ-1). It depends only on its arguments, so
// DEL finds the device without a record.
func DeviceName(network string, o Owner) string {
	return DevicePrefix(network) + Digest(network+"\x00"+o.ContainerID+"\x00"+o.IfName, 8)
}

// Digest returns the first hexadecimal digits of the SHA-256 digest of text.
func Digest(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}
