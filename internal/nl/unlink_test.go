// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestDeleteLink deletes pairs of devices and makes others of the same names at
// once, several at a time: a name that is not free yet would be refused.
func TestDeleteLink(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			near, far := fmt.Sprint("near", i), fmt.Sprint("far", i)
			for range 5 {
				if err := deleteWire(nl.WireEnd{Namespace: a, Name: near}, nl.WireEnd{Namespace: b, Name: far}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// deleteWire makes a wire and deletes one end of it, twice.
func deleteWire(a, b nl.WireEnd) error {
	if err := nl.AddWire(a, b, 1500); err != nil {
		return err
	}
	device, err := a.Namespace.Device(a.Name)
	if err != nil {
		return err
	}
	handle, err := a.Namespace.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	for range 2 {
		if err := a.Namespace.DeleteLink(handle, device.Index); err != nil {
			return err
		}
	}
	if _, err := b.Namespace.Device(b.Name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the other end, %s, is still there: %w", b.Name, err)
	}
	return nil
}

// TestDeleteLinkRefused asks for a device that the kernel keeps.
func TestDeleteLinkRefused(t *testing.T) {
	ns := testkit.Namespace(t, "a")
	handle, err := ns.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	if err := ns.DeleteLink(handle, 1); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("deleting the loopback device: %v", err)
	}
}

// TestSetSysctls sets several, one of which is not there.
func TestSetSysctls(t *testing.T) {
	ns := testkit.Namespace(t, "a")
	sysctls := []nl.Sysctl{
		{Key: "net/ipv4/ip_forward", Value: "1"},
		{Key: "net/ipv4/none", Value: "1"},
		{Key: "net/ipv4/conf/lo/arp_notify", Value: "1"},
	}
	if err := ns.SetSysctls(sysctls, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	for range 2 {
		err := ns.SetSysctls(sysctls, func(s nl.Sysctl, err error) bool {
			return s.Key == "net/ipv4/none" && errors.Is(err, fs.ErrNotExist)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []nl.Sysctl{sysctls[0], sysctls[2]} {
		if value, err := ns.Sysctl(s.Key); err != nil || value != s.Value {
			t.Errorf("%s is %q, %v", s.Key, value, err)
		}
	}
	if err := ns.SetSysctls([]nl.Sysctl{{Key: "net/ipv4/ip_forward", Value: "x"}}, nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("error is %v", err)
	}
	if err := ns.SetSysctls([]nl.Sysctl{{Key: "kernel/panic", Value: "1"}}, nil); err == nil {
		t.Error("set a sysctl that is none of a network")
	}
}
