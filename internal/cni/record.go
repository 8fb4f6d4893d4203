// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"mustang/internal/lb"
	"mustang/internal/podlink"
)

// Record is what is known of an attachment: what ADD has made, or is about to
// make. It is there before the thing that it tells of.
type Record struct {
	// Owner is the container and the name of its device.
	Owner Owner `json:"owner"`
	// Boot is the boot that the attachment was made in, which it does not outlive.
	Boot string `json:"boot"`
	// Netns is the path of the pod's network namespace, Cookie what the kernel knows it by.
	Netns  string `json:"netns"`
	Cookie uint64 `json:"cookie,omitempty"`
	// Link is the link mode, HostIfName the host's device. Empty where another plugin made the link.
	Link       string `json:"link,omitempty"`
	HostIfName string `json:"host_ifname,omitempty"`
	// Bridge, OVSDB and IPAM are those of the configuration.
	Bridge string `json:"bridge,omitempty"`
	OVSDB  string `json:"ovsdb,omitempty"`
	IPAM   string `json:"ipam,omitempty"`
	// Routers are the gateways that are not the host: where there are any, the host has routes to the pod.
	Routers []netip.Addr `json:"routers,omitempty"`
	// Linked is set from when the link is about to be made.
	Linked bool `json:"linked,omitempty"`
	// Routes are those that the pod was given, Secondary is set if it had default routes by another device, or gets none.
	Routes    []podlink.Route `json:"routes,omitempty"`
	Secondary bool            `json:"secondary,omitempty"`
	// Leased is set from when addresses are about to be reserved, Addresses are those of the pod.
	Leased    bool         `json:"leased,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Endpoint is set from when the datapath is about to get the pod as an endpoint, Admitted likewise for its sockets.
	Endpoint bool `json:"endpoint,omitempty"`
	Admitted bool `json:"admitted,omitempty"`
	// Ports are the services of the host's ports.
	Ports []lb.Service `json:"ports,omitempty"`
	// Done is set when ADD has made all.
	Done bool `json:"done,omitempty"`

	file *os.File // held locked
	hook func(step string) error
}

// save appends the record's present state to its file, as a line. One that is cut
// off, by a full disk or a kill, does not count, and leaves the line before.
func (r *Record) save() error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := r.file.Write(slices.Concat([]byte("\n"), line, []byte("\n"))); err != nil {
		return fmt.Errorf("record %s: %w", describe(r.Owner), err)
	}
	return r.hook("record")
}

// parseRecord reads the last line that is whole; ok is false if there is none.
func parseRecord(data []byte) (r Record, ok bool) {
	for _, line := range slices.Backward(bytes.Split(data, []byte("\n"))) {
		var out Record
		if len(line) > 0 && json.Unmarshal(line, &out) == nil {
			return out, true
		}
	}
	return r, false
}
