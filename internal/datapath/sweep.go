// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"slices"

	"mustang/internal/nl"
)

// Sweep removes what is left of pods that nobody has deleted: endpoints whose device is gone, and pods of AddSocketPod whose
// namespace has neither a name nor a process. What is in namespaces that keep says yes to, by their cookies, stays.
func (d *Datapath) Sweep(keep func(cookie uint64) bool) error {
	return errors.Join(d.sweepEndpoints(keep), d.sweepSocketPods(keep))
}

func (d *Datapath) sweepEndpoints(keep func(uint64) bool) error {
	unlock, err := d.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	all, err := d.endpoints()
	if err != nil {
		return err
	}
	gone := make(map[uint32]bool)
	for _, e := range all {
		if !gone[e.ID] && !keep(e.netns) && !d.alive(e.ID) {
			gone[e.ID] = true
		}
	}
	for id := range gone {
		if err := d.drop(all, id); err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(e Endpoint) bool { return e.ID == id })
	}
	return nil
}

func (d *Datapath) sweepSocketPods(keep func(uint64) bool) error {
	pods, err := d.SocketPods()
	if err != nil {
		return err
	}
	gone := make(map[uint64]bool)
	for _, cookie := range pods {
		if !keep(cookie) {
			gone[cookie] = true
		}
	}
	if len(gone) == 0 {
		return nil // and nobody has to look at all processes
	}
	if err := eachNamespace(func(_ *nl.Namespace, cookie uint64) error {
		delete(gone, cookie)
		return nil
	}); err != nil {
		return err
	}
	for cookie := range gone {
		if err := d.DeleteSocketPod(cookie); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
