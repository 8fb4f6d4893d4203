// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/nl"
)

// Uplink is a device of a host's own by which clients outside reach services.
type Uplink struct {
	// Host is the cookie of the network namespace that the device is in; it is not used again.
	Host uint64
	// IfIndex is the device's index there.
	IfIndex int
}

// uplinkPrefix starts the names of pinned links to uplinks. Those of endpoints start with a digit.
const uplinkPrefix = "uplink-"

func (l layout) uplinkPin(u Uplink, h hook) string {
	return filepath.Join(l.links(), fmt.Sprintf("%s%d-%d-%s", uplinkPrefix, u.Host, u.IfIndex, h.program))
}

// parseUplinkPin is the reverse of uplinkPin, for a file's name.
func parseUplinkPin(name string) (Uplink, hook, bool) {
	rest, ok := strings.CutPrefix(name, uplinkPrefix)
	parts := strings.Split(rest, "-")
	if !ok || len(parts) != 3 {
		return Uplink{}, hook{}, false
	}
	host, err := strconv.ParseUint(parts[0], 10, 64)
	index, err2 := strconv.Atoi(parts[1])
	i := slices.IndexFunc(uplinkSide.hooks(), func(h hook) bool { return h.program == parts[2] })
	if err != nil || err2 != nil || i < 0 {
		return Uplink{}, hook{}, false
	}
	return Uplink{host, index}, uplinkSide.hooks()[i], true
}

// AddUplink has services served for clients whose packets come in by the device: one whose frontend is an address of the
// host, or any that is routed here. Packets go to backends that are endpoints with a host's side, or sit on this very
// device, past the host's stack and netfilter, and so do the answers, to the MAC address that the request came from; to
// others, and from them, through the stack. All other packets pass as they are. What is attached already stays. Links
// of devices that are gone are cleared. Errors: a device that is missing matches os.ErrNotExist; a device without a MAC
// address is refused.
func (d *Datapath) AddUplink(ns *nl.Namespace, ifname string) (Change, error) {
	u, err := FindUplink(ns, ifname)
	if err != nil {
		return Unchanged, err
	}
	unlock, err := d.Lock()
	if err != nil {
		return Unchanged, err
	}
	defer unlock()
	attached, err := d.clearUplinks()
	if err != nil {
		return Unchanged, err
	}
	var missing []hook
	for _, h := range uplinkSide.hooks() {
		if !slices.Contains(attached[u], h) {
			missing = append(missing, h)
		}
	}
	if len(missing) == 0 {
		return Unchanged, nil
	}
	if err := ns.Do(func() error { return d.attachUplink(u, missing) }); err != nil {
		return Unchanged, fmt.Errorf("uplink %q in network namespace %q: %w", ifname, ns.Name(), err)
	}
	if len(attached[u]) > 0 {
		return Updated, nil
	}
	return Added, nil
}

// FindUplink says which uplink a device is, or would be. Errors: a device that is missing matches os.ErrNotExist; a device
// without a MAC address is refused.
func FindUplink(ns *nl.Namespace, ifname string) (Uplink, error) {
	device, err := ns.Device(ifname)
	if err != nil {
		return Uplink{}, err
	}
	if len(device.MAC) != 6 || device.Kind == "loopback" {
		return Uplink{}, fmt.Errorf("device %q in network namespace %q has no MAC address: it can be no uplink", ifname, ns.Name())
	}
	cookie, err := ns.Cookie()
	return Uplink{Host: cookie, IfIndex: device.Index}, err
}

// attachUplink attaches programs in the device's namespace; all or none. Answers first, so that no request is translated
// whose answer would not be.
func (d *Datapath) attachUplink(u Uplink, missing []hook) (err error) {
	var made []string
	defer func() {
		if err == nil {
			return
		}
		for _, path := range made {
			err = errors.Join(err, detachLink(path))
		}
	}()
	for _, h := range slices.Backward(missing) {
		path := d.layout.uplinkPin(u, h)
		if err := d.attachOne(path, h, u.IfIndex); err != nil {
			return err
		}
		made = append(made, path)
	}
	return nil
}

// DeleteUplink ends what AddUplink began. Connections that came in by the device are left to the host, which knows
// nothing of them. The error is a *NotFoundError if the device is no uplink, or is gone.
func (d *Datapath) DeleteUplink(u Uplink) error {
	unlock, err := d.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	attached, err := d.clearUplinks()
	if err != nil {
		return err
	}
	if len(attached[u]) == 0 {
		return &NotFoundError{What: fmt.Sprintf("uplink %d of the host with cookie %d", u.IfIndex, u.Host)}
	}
	for _, h := range uplinkSide.hooks() {
		if err := detachLink(d.layout.uplinkPin(u, h)); err != nil {
			return err
		}
	}
	return nil
}

// Uplinks returns the devices that were added with AddUplink and are there still, sorted by host and index.
func (d *Datapath) Uplinks() ([]Uplink, error) {
	unlock, err := d.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	attached, err := d.clearUplinks()
	if err != nil {
		return nil, err
	}
	var all []Uplink
	for u := range attached {
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b Uplink) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.IfIndex, b.IfIndex))
	})
	return all, nil
}

// clearUplinks removes the links of uplinks that are gone, and returns what is attached to the others. The caller has the
// lock.
func (d *Datapath) clearUplinks() (map[Uplink][]hook, error) {
	entries, err := os.ReadDir(d.layout.links())
	if err != nil {
		return nil, fmt.Errorf("read links: %w", err)
	}
	attached := make(map[Uplink][]hook)
	for _, entry := range entries {
		u, h, ok := parseUplinkPin(entry.Name())
		if !ok {
			continue
		}
		path := d.layout.uplinkPin(u, h)
		on, err := attachedTo(path)
		if err != nil {
			return nil, err
		}
		if on == u.IfIndex {
			attached[u] = append(attached[u], h)
			continue
		}
		if err := detachLink(path); err != nil {
			return nil, err
		}
	}
	return attached, nil
}
