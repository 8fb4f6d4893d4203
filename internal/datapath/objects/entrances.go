// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// WithEntrances calls fn with the devices of the host where the source guard sees what pods send to the host: the index of their
// pods' parent, by their own. The error matches os.ErrNotExist if no program has been loaded yet: there are none.
func (o *Objects) WithEntrances(fn func(*Table[uint32, uint32]) error) error {
	m, err := ebpf.LoadPinnedMap(o.layout.mapPin(tcMapEntrances), nil)
	if err != nil {
		return fmt.Errorf("open map %q: %w", tcMapEntrances, err)
	}
	return errors.Join(fn(&Table[uint32, uint32]{Map: m, Name: tcMapEntrances}), m.Close())
}
