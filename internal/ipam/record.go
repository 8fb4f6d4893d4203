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

// record is what a file holds: all that an owner has.
type record struct {
	Boot string `json:"boot"`
	Owner
	Leases []Lease `json:"leases"`
}

// Why a file holds no lease.
var (
	errBroken  = errors.New("not a whole record") // empty, cut short, or another's by its content
	errStale   = errors.New("of an earlier boot")
	errForeign = errors.New("not a regular file, so not one of ours")
)

// noLease tells whether a file that could not be read holds no lease. An error of the disk says nothing of the kind.
func noLease(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errBroken) || errors.Is(err, errStale) || errors.Is(err, errForeign)
}

// maxRecord is far more than a record can be, in bytes.
const maxRecord = 1 << 16

// read returns the record in a file, whose name is that of its owner or of one of its addresses. A stale record is
// returned with its error.
func (s *Store) read(name string) (record, error) {
	data, err := s.content(name)
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil || !r.named(name) {
		return record{}, fmt.Errorf("%s: %w", s.path(name), errBroken)
	}
	for i := range r.Leases {
		r.Leases[i].Owner = r.Owner
	}
	if r.Boot != s.Boot {
		return r, fmt.Errorf("%s: %w", s.path(name), errStale)
	}
	return r, nil
}

// content reads a regular file, and waits for no writer of a pipe.
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

// named tells whether a file with this record can be called so.
func (r record) named(name string) bool {
	if r.validate() != nil {
		return false
	}
	_, found := r.lease(name)
	return found || name == r.file()
}

// lease is the record's lease of the address that a file is named after.
func (r record) lease(name string) (Lease, bool) {
	at := slices.IndexFunc(r.Leases, func(l Lease) bool { return l.Address.String() == name })
	if at < 0 {
		return Lease{}, false
	}
	return r.Leases[at], true
}

// addresses are those of the leases.
func addresses(leases []Lease) []netip.Addr {
	addrs := make([]netip.Addr, len(leases))
	for i, l := range leases {
		addrs[i] = l.Address
	}
	return addrs
}

func (r record) marshal() []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and addresses can always be written
	}
	return append(data, '\n')
}
