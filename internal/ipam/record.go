// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// record is the content of a file: all leases of an owner.
type record struct {
	Boot string `json:"boot"`
	Owner
	Leases []Lease `json:"leases"`
}

// Reasons why a file holds no lease.
var (
	errBroken  = errors.New("damaged record") // empty, cut short, or with another owner's content
	errStale   = errors.New("record of an earlier boot")
	errForeign = errors.New("not a regular file")
)

// holdsNoLease reports whether the error of a read means that the file holds no lease. Other errors are those of the disk.
func holdsNoLease(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errBroken) || errors.Is(err, errStale) || errors.Is(err, errForeign)
}

// maxRecord bounds the size of a file, in bytes.
const maxRecord = 1 << 16

// read reads the record of a file, which is named after its owner or one of its addresses. With errStale it returns the
// record as well.
func (s *Store) read(name string) (record, error) {
	data, err := s.content(name)
	if err != nil {
		return record{}, err
	}
	r, err := parseRecord(name, data)
	if err == nil && r.Boot != s.Boot {
		err = errStale
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", s.path(name), err)
	}
	return r, nil
}

// parseRecord decodes the content of a file of that name.
func parseRecord(name string, data []byte) (r record, err error) {
	if err := json.Unmarshal(data, &r); err != nil || !r.matches(name) {
		return record{}, errBroken
	}
	for i := range r.Leases {
		r.Leases[i].Owner = r.Owner
	}
	return r, nil
}

// content reads a regular file. It does not wait for the writer of a named pipe.
func (s *Store) content(name string) ([]byte, error) {
	file, err := os.OpenFile(s.path(name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) { // a symbolic link, a socket
		return nil, fmt.Errorf("%s: %w", s.path(name), errForeign)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", s.path(name), errForeign)
	}
	return io.ReadAll(io.LimitReader(file, maxRecord))
}

// matches reports whether a file with this record can have that name.
func (r record) matches(name string) bool {
	if r.validate() != nil {
		return false
	}
	_, found := r.lease(name)
	return found || name == r.file()
}

// lease returns the lease of the address that a file is named after.
func (r record) lease(name string) (Lease, bool) {
	i := slices.IndexFunc(r.Leases, func(l Lease) bool { return l.Address.String() == name })
	if i < 0 {
		return Lease{}, false
	}
	return r.Leases[i], true
}

func (r record) marshal() []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and addresses always have a JSON form
	}
	return append(data, '\n')
}

// fileKind is the kind of a file by its name, in the order in which a sweep removes files. Owners' files are last, so that
// a killed sweep leaves nothing that its owner cannot find.
type fileKind int

const (
	foreignFile fileKind = iota
	unfinishedFile
	addressFile
	ownerFile
)

func kindOf(name string) fileKind {
	if name == newFile {
		return unfinishedFile
	}
	if addr, err := netip.ParseAddr(name); err == nil && addr.Zone() == "" && addr.String() == name {
		return addressFile
	}
	if _, ok := parseOwner(name); ok {
		return ownerFile
	}
	return foreignFile
}
