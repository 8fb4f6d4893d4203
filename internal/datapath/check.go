// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// DeviationError says in what an endpoint is not as AddEndpoint leaves it.
type DeviationError struct {
	Endpoint   string // names the device
	Deviations []string
}

func (e *DeviationError) Error() string {
	return fmt.Sprintf("endpoint of %s: %s", e.Endpoint, strings.Join(e.Deviations, "; "))
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
		return &DeviationError{Endpoint: a.String(), Deviations: []string{"it is none"}}
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
	if len(found) > 0 {
		return &DeviationError{Endpoint: a.String(), Deviations: found}
	}
	return nil
}
