// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"github.com/vishvananda/netlink"
)

// addFilters adds to links the eBPF programs that hang on them as classic tc
// filters (of a clsact or ingress qdisc). Filters of a device that is gone by
// now are left out.
func addFilters(handle *netlink.Handle, links []Link) {
	for i := range links {
		l := &links[i]
		for _, at := range []struct {
			hook   string
			parent uint32
		}{{"tc ingress", netlink.HANDLE_MIN_INGRESS}, {"tc egress", netlink.HANDLE_MIN_EGRESS}} {
			device := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.Index}}
			filters, err := Dump(func() ([]netlink.Filter, error) { return handle.FilterList(device, at.parent) })
			if err != nil {
				continue
			}
			for _, filter := range filters {
				if bpf, ok := filter.(*netlink.BpfFilter); ok {
					l.Programs = append(l.Programs, ProgramRef{Hook: at.hook, ID: uint32(bpf.Id)})
				}
			}
		}
	}
}
