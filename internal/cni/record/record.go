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
	Link     string         `json:"link,omitempty"`   // the link mode
	Parent   string         `json:"parent,omitempty"` // the host's uplink
	Bridge   string         `json:"bridge,omitempty"`
	OVSDB    string         `json:"ovsdb,omitempty"`
	MTU      int            `json:"mtu,omitempty"`
	Gateways []netip.Prefix `json:"gateways,omitempty"` // the host's own addresses for the pods
	Routers  []netip.Addr   `json:"routers,omitempty"`  // other gateways; if there are any, the host routes to the pods
}

// Record describes an attachment. ADD saves each field before it creates the object that the field describes.
type Record struct {
	Network string `json:"-"` // its name
	Owner   Owner  `json:"owner"`
	Boot    string `json:"boot"`             // boot ID of the ADD; empty in a new record. No attachment survives a reboot.
	Netns   string `json:"netns"`            // path of the pod's network namespace
	Cookie  uint64 `json:"cookie,omitempty"` // of the namespace
	Segment        // empty until ADD has selected it, and in a chained plugin

	HostIfName string          `json:"host_ifname,omitempty"` // the host device; empty in a chained plugin
	IPAM       string          `json:"ipam,omitempty"`        // type of address management
	Pod        string          `json:"pod,omitempty"`         // NAMESPACE/NAME in Kubernetes
	Linked     bool            `json:"linked,omitempty"`      // a link may exist
	Routes     []podlink.Route `json:"routes,omitempty"`      // additional routes of the pod
	Secondary  bool            `json:"secondary,omitempty"`   // the pod gets no default routes by this device
	Leased     bool            `json:"leased,omitempty"`      // addresses may be reserved
	Addresses  []netip.Addr    `json:"addresses,omitempty"`
	Endpoint   bool            `json:"endpoint,omitempty"` // the pod may be an endpoint of the datapath
	Guarded    bool            `json:"guarded,omitempty"`  // a source guard of another pod may be attached
	Admitted   bool            `json:"admitted,omitempty"` // the sockets of the pod may be enabled

	Ports  []service.Service `json:"ports,omitempty"`  // of the host ports
	Uplink string            `json:"uplink,omitempty"` // of the datapath, which serves the host ports
	Done   bool              `json:"done,omitempty"`   // ADD has finished

	file *os.File // locked
}

// Same reports whether another record is of the same attachment.
func (r *Record) Same(other Record) bool { return r.Network == other.Network && r.Owner == other.Owner }

// Save appends the record to its file as one line. A line that is cut short is ignored, and the previous line counts.
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

// parse decodes the last complete line; ok is false if there is none. It ignores a line of another attachment or with a
// foreign device, since DEL deletes the objects in the record.
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

// DeviceName returns the name of the host device, 15 characters long (IFNAMSIZ-1). It depends only on its arguments, so
// DEL finds the device without a record.
func DeviceName(network string, o Owner) string {
	return DevicePrefix(network) + Digest(network+"\x00"+o.ContainerID+"\x00"+o.IfName, 8)
}

// Digest returns the first hexadecimal digits of the SHA-256 digest of text.
func Digest(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}
