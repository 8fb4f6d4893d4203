// SPDX-License-Identifier: Apache-2.0

package objects

// UnusedAddresses returns the rows of ServiceAddrs that do not follow from Services. At an address of the node the
// kernel answers echo requests. Without the lock of the rows, some may have a service by now.
func (o *Objects) UnusedAddresses() (unused []Addr, err error) {
	used := make(map[Addr]bool)
	for row, err := range o.Services.All() {
		if err != nil {
			return nil, err
		}
		if row.Value.Flags&(ServiceNodePort|ServiceLoopback) == 0 {
			used[row.Key.Addr] = true
		}
	}
	for row, err := range o.ServiceAddrs.All() {
		if err != nil {
			return nil, err
		}
		if !used[row.Key] {
			unused = append(unused, row.Key)
		}
	}
	return unused, nil
}
