// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"mustang/internal/nl"
)

// DeviationError says in what something is not as the call leaves it that adds it.
type DeviationError struct {
	What       string // an endpoint, a host or an uplink, by its name
	Deviations []string
}

func (e *DeviationError) Error() string {
	return e.What + ": " + strings.Join(e.Deviations, "; ")
}

// CheckEndpoint is nil if a device is an endpoint with all its addresses, and has its programs; otherwise a
// *DeviationError, or what kept it from looking. It changes nothing.
func (d *Datapath) CheckEndpoint(a Attach) error {
	t, err := a.find()
	if err != nil {
		return err
	}
	defer t.close()
	if err := t.addressed(a); err != nil {
		return err
	}
	all, err := d.Endpoints()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, t.is)
	if i < 0 {
		return deviation("endpoint of "+a.String(), "it is none")
	}
	id := all[i].ID
	var found []string
	for _, want := range t.endpoints(id) {
		if !slices.ContainsFunc(all, func(have Endpoint) bool { return reflect.DeepEqual(have, want) }) {
			found = append(found, fmt.Sprintf("address %s is missing or leads elsewhere", want.IP))
		}
	}
	for _, h := range t.side.hooks() {
		if on, err := attachedTo(d.layout.linkPin(id, h)); err != nil || on == 0 {
			found = append(found, fmt.Sprintf("program %s is not attached", h.program))
		}
	}
	return deviation("endpoint of "+a.String(), found...)
}

// CheckHost is nil if the sockets in a host's namespace are translated: AddHost was called for it, and the programs of
// AttachSocket are on the control group with the directory path. Otherwise it is a *DeviationError, or what kept it from
// looking. It changes nothing, waits for no lock, and takes a few system calls for each program.
func (d *Datapath) CheckHost(ns *nl.Namespace, path string) error {
	cookie, err := ns.Cookie()
	if err != nil {
		return err
	}
	c, err := openCgroup(path)
	if err != nil {
		return err
	}
	defer c.close()
	var found, lacking []string
	var flags uint32
	switch err := d.namespaces.Lookup(cookie, &flags); {
	case errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && flags&namespaceHost == 0:
		found = append(found, "its network namespace is not known to the datapath")
	case err != nil:
		return fmt.Errorf("read namespace: %w", err)
	}
	for _, h := range socketHooks() {
		if on, err := attachedToCgroup(d.layout.socketLinkPin(c.id, h.program)); err != nil || on != c.id {
			lacking = append(lacking, h.program)
		}
	}
	if len(lacking) > 0 {
		found = append(found, fmt.Sprintf("control group %q lacks the socket programs %s", c.path, strings.Join(lacking, ", ")))
	}
	return deviation(fmt.Sprintf("sockets of host %q", ns.Name()), found...)
}

// CheckUplink is nil if a device has the programs of AddUplink; otherwise a *DeviationError, or what kept it from
// looking. It changes nothing.
func (d *Datapath) CheckUplink(ns *nl.Namespace, ifname string) error {
	u, err := FindUplink(ns, ifname)
	if err != nil {
		return err
	}
	var found []string
	for _, h := range uplinkSide.hooks() {
		if on, err := attachedTo(d.layout.uplinkPin(u, h)); err != nil || on != u.IfIndex {
			found = append(found, fmt.Sprintf("program %s is not attached", h.program))
		}
	}
	return deviation(fmt.Sprintf("uplink %q", ifname), found...)
}

// deviation is nil if nothing was found.
func deviation(what string, found ...string) error {
	if len(found) == 0 {
		return nil
	}
	return &DeviationError{What: what, Deviations: found}
}
