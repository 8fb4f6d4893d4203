// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"io/fs"

	"mustang/internal/datapath"
)

// sweep removes from the datapath what is left of pods of which nothing tells any more
// but the datapath, and which are gone.
func (p *Plugin) sweep() error {
	d, err := datapath.OpenExisting(p.datapathOptions())
	var noBPF *datapath.BPFFSError
	var others *datapath.LayoutError
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &noBPF) || errors.As(err, &others) {
		return nil // none of ours, so nothing of the pods' is left
	}
	if err != nil {
		return err
	}
	recorded, err := p.recorded()
	if err == nil {
		err = d.Sweep(func(cookie uint64) bool { return recorded[cookie] })
	}
	return errors.Join(err, d.Close())
}

// recorded are the cookies of pods that have an attachment with a record, in any
// network.
func (p *Plugin) recorded() (map[uint64]bool, error) {
	all, err := p.recordsLike("*")
	out := make(map[uint64]bool)
	for _, r := range all {
		out[r.Cookie] = true
	}
	delete(out, 0)
	return out, err
}
