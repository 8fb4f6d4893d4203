// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"os"
	"sync"
)

// tables are the maps for packets. They wait for the first method that needs them: a pod whose sockets alone are
// translated comes and goes without any, and to open them all takes longer than all the rest of that.
type tables struct {
	opening sync.Mutex
	opened  bool
	maps    mustangMaps
}

// openTables opens the tables, unless they are open, and creates those that are missing if sizes are given. Methods call
// it before they use the maps, most of them by Lock.
func (d *Datapath) openTables(sizes map[string]uint32) error {
	d.opening.Lock()
	defer d.opening.Unlock()
	if d.opened {
		return nil
	}
	p := pinner{layout: d.layout, sizes: sizes, load: loadMustang}
	if err := p.open(slots(&d.maps)); err != nil {
		return err
	}
	d.opened = true
	return nil
}

func (d *Datapath) closeTables() error {
	d.opening.Lock()
	defer d.opening.Unlock()
	if !d.opened {
		return nil
	}
	d.opened = false
	return d.maps.Close()
}

// hasTables reports whether all tables are pinned.
func (l layout) hasTables() bool {
	for name := range slots(&mustangMaps{}) {
		if _, err := os.Lstat(l.mapPin(name)); err != nil {
			return false
		}
	}
	return true
}
