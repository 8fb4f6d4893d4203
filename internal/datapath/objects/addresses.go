// SPDX-License-Identifier: Apache-2.0

package objects

import "errors"

// answersEcho reports whether programs answer echo requests to the address of a service with the flags. At an address
// of the node the kernel does.
func answersEcho(flags uint32) bool { return flags&(ServiceNodePort|ServiceLoopback) == 0 }

// CountAddresses makes the rows of ServiceAddrs those that follow from Services. The caller has the lock of the rows.
func (o *Objects) CountAddresses() error {
	counts := make(map[Addr]uint32)
	for row, err := range o.Services.All() {
		if err != nil {
			return err
		}
		if answersEcho(row.Value.Flags) {
			counts[row.Key.Addr]++
		}
	}
	var unused []Addr
	for row, err := range o.ServiceAddrs.All() {
		switch {
		case err != nil:
			return err
		case counts[row.Key] == 0:
			unused = append(unused, row.Key)
		case counts[row.Key] == row.Value:
			delete(counts, row.Key)
		}
	}
	return errors.Join(o.ServiceAddrs.DeleteBatch(unused), o.PutAddresses(counts))
}

// PutAddresses stores the numbers of services at addresses. Those without any are deleted.
func (o *Objects) PutAddresses(counts map[Addr]uint32) error {
	var keys, unused []Addr
	var values []uint32
	for key, n := range counts {
		if n == 0 {
			unused = append(unused, key)
			continue
		}
		keys, values = append(keys, key), append(values, n)
	}
	_, err := o.ServiceAddrs.PutBatch(keys, values)
	return errors.Join(err, o.ServiceAddrs.DeleteBatch(unused))
}
