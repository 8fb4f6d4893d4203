// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"mustang/internal/ipam"
	"mustang/internal/podlink"
	"mustang/internal/service"
)

// Segment is the place of pods on the host.
type Segment struct {
	// Link is the link mode, and Parent the host's uplink.
	Link   string `json:"link,omitempty"`
	Parent string `json:"parent,omitempty"`
	// Bridge and OVSDB are copied from the configuration.
	Bridge string `json:"bridge,omitempty"`
	OVSDB  string `json:"ovsdb,omitempty"`
	MTU    int    `json:"mtu,omitempty"`
	// Gateways are the host's own addresses for the pods.
	Gateways []netip.Prefix `json:"gateways,omitempty"`
	// Routers are the gateways that are not the host. If there are any, the host routes to the pods.
	Routers []netip.Addr `json:"routers,omitempty"`
}

// Record describes an attachment. ADD saves each field before it creates the object that the field describes.
type Record struct {
	// Network is the name of the network. It is not part of the file.
	Network string `json:"-"`
	// Owner is the container and the name of its device.
	Owner Owner `json:"owner"`
	// Boot is the boot ID of the ADD; empty in a new record. No attachment survives a reboot.
	Boot string `json:"boot"`
	// Netns is the path of the pod's network namespace, Cookie its network namespace cookie.
	Netns  string `json:"netns"`
	Cookie uint64 `json:"cookie,omitempty"`
	// Segment is empty until ADD has selected it, and in a chained plugin.
	Segment
	// HostIfName is the host device; empty in a chained plugin.
	HostIfName string `json:"host_ifname,omitempty"`
	// IPAM is the type of address management.
	IPAM string `json:"ipam,omitempty"`
	// Pod is the namespace and the name of the Kubernetes Pod; empty for other pods.
	Pod string `json:"pod,omitempty"`
	// Linked is set before the link is created.
	Linked bool `json:"linked,omitempty"`
	// Routes are the pod's additional routes. Secondary is set if the pod gets no default routes by this device.
	Routes    []podlink.Route `json:"routes,omitempty"`
	Secondary bool            `json:"secondary,omitempty"`
	// Leased is set before addresses are reserved. Addresses are the pod's.
	Leased    bool         `json:"leased,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Endpoint is set before the datapath gets the endpoint, Admitted before it enables the pod's sockets.
	Endpoint bool `json:"endpoint,omitempty"`
	// Guarded is set before the source guard is attached to the device of a pod that is not an endpoint.
	Guarded  bool `json:"guarded,omitempty"`
	Admitted bool `json:"admitted,omitempty"`
	// Ports are the services of the host ports, and Uplink the uplink of the datapath that serves them.
	Ports  []service.Service `json:"ports,omitempty"`
	Uplink string            `json:"uplink,omitempty"`
	// Done is set when ADD has finished.
	Done bool `json:"done,omitempty"`

	file *os.File // locked
}

// Same reports whether another record is of the same attachment.
func (r *Record) Same(other Record) bool { return r.Network == other.Network && r.Owner == other.Owner }

// Save appends the record to its file as one line. A line that a full disk or a kill cuts short is ignored, and the
// previous line counts.
func (r *Record) Save() error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := r.file.Write(slices.Concat([]byte("\n"), line, []byte("\n"))); err != nil {
		return fmt.Errorf("save record of %s: %w", r.Owner, err)
	}
	return nil
}

// Remove deletes the file. The record stays locked.
func (r *Record) Remove() error {
	if err := os.Remove(r.file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of %s: %w", r.Owner, err)
	}
	return nil
}

// Close releases the lock.
func (r *Record) Close() { _ = r.file.Close() }

// parse decodes the last complete line of an attachment's record; ok is false if there is none. It ignores a line of
// another attachment or with a foreign device, since DEL deletes the objects in the record.
func parse(data []byte, network string, o Owner) (r Record, ok bool) {
	for _, line := range slices.Backward(bytes.Split(data, []byte("\n"))) {
		var out Record
		if len(line) > 0 && json.Unmarshal(line, &out) == nil && out.Owner == o &&
			(out.HostIfName == "" || out.HostIfName == DeviceName(network, o)) {
			out.Network = network
			return out, true
		}
	}
	return r, false
}

// Owner identifies an attachment within its network.
type Owner = ipam.Owner

// DevicePrefix returns the first 7 characters of the names of the host devices of a network.
func DevicePrefix(network string) string { return "mst" + Digest(network, 4) }

// DeviceName returns the name of the host device of an attachment, 15 characters long (IFNAMSIZ-1). It depends only on
// its arguments, so DEL finds the device without a record.
func DeviceName(network string, o Owner) string {
	return DevicePrefix(network) + Digest(network+"\x00"+o.ContainerID+"\x00"+o.IfName, 8)
}

// Digest returns the first hexadecimal digits of the SHA-256 digest of text.
func Digest(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}
