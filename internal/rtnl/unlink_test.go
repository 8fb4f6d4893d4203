// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// deleters are both ways to delete a device.
var deleters = map[string]func(*netns.Namespace, int) error{
	"child": rtnl.DeleteInChild,
	"in place": func(ns *netns.Namespace, index int) error {
		handle, err := rtnl.In(ns).Handle()
		if err != nil {
			return err
		}
		defer handle.Close()
		return rtnl.DeleteLink(handle, index)
	},
}

// TestDevice deletes pairs of devices and creates others with the same names at once, in
// parallel: a name that is not free yet is an error.
func TestDevice(t *testing.T) {
	for name, deleter := range deleters {
		t.Run(name, func(t *testing.T) {
			a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
			var group sync.WaitGroup
			for i := range 4 {
				group.Go(func() {
					ends := [2]rtnl.VethEnd{{Namespace: a, Name: fmt.Sprint("near", i)}, {Namespace: b, Name: fmt.Sprint("far", i)}}
					for range 5 {
						if err := deletePair(deleter, ends); err != nil {
							t.Error(err)
						}
					}
				})
			}
			group.Wait()
		})
	}
}

// deletePair creates a pair of devices and deletes one of them, twice.
func deletePair(deleter func(*netns.Namespace, int) error, ends [2]rtnl.VethEnd) error {
	if err := rtnl.AddVeth(ends[0], ends[1], 1500); err != nil {
		return err
	}
	device, err := rtnl.In(ends[0].Namespace).Device(ends[0].Name)
	if err != nil {
		return err
	}
	for range 2 {
		if err := deleter(ends[0].Namespace, device.Index); err != nil {
			return err
		}
	}
	if _, err := rtnl.In(ends[1].Namespace).Device(ends[1].Name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the peer %s still exists: %w", ends[1].Name, err)
	}
	return nil
}

// TestDeviceRefused deletes the loopback device, which the kernel refuses.
func TestDeviceRefused(t *testing.T) {
	ns := testkit.Namespace(t, "a")
	for name, deleter := range deleters {
		if err := deleter(ns, 1); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
