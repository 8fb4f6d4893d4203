// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"io/fs"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
)

// The program of a pod that is no endpoint is a tc filter where it is at a device of the host, which nobody in the pod can
// change: attaching one by tcx, and deleting a device that has one, waits for an RCU grace period of about 12 ms with the
// lock of all devices (docs/adr/0026). It is nowhere pinned. The row of the device tells where it is, and comes first.

// isFilter reports whether the program at a place is a tc filter, if the kernel has them.
func isFilter(p objects.AttachPoint) bool { return p == objects.AttachHost || p == objects.AttachTun }

func setFilter(o *objects.Objects, h objects.Hook, host *netns.Namespace, index int) error {
	p, err := o.Program(h)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	return qdisc.SetIngress(host, index, p.FD())
}

// hasFilter reports whether a device has a filter. If that is not known it may have one.
func hasFilter(host *netns.Namespace, index int) bool {
	program, err := qdisc.Ingress(host, index)
	return program != 0 || err != nil
}

// Supersede ends the filter of a pod that was no endpoint, once the programs of its endpoint are on the device.
func Supersede(d *device.Device) error {
	if !isFilter(d.Point) {
		return nil
	}
	return qdisc.DeleteIngress(d.On, d.IfIndex)
}

// ReplaceFilters replaces filters of another build by this build's, each in one step.
func ReplaceFilters(o *objects.Objects, host *netns.Namespace) error {
	all, err := Alone(o)
	for _, row := range all {
		index := int(row.Key.Ifindex)
		if row.Key.Netns != 0 || !hasFilter(host, index) {
			continue
		}
		d, deviceErr := rtnl.In(host).DeviceByIndex(index)
		point := objects.AttachHost
		if len(d.MAC) == 0 {
			point = objects.AttachTun
		}
		if deviceErr == nil {
			deviceErr = setFilter(o, point.Guard().Hooks()[0], host, index)
		}
		if !errors.Is(deviceErr, fs.ErrNotExist) {
			err = errors.Join(err, deviceErr)
		}
	}
	return err
}
