// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"os"
	"strings"

	"mustang/internal/service"
)

// Change is the effect of a call.
type Change int

// The changes.
const (
	Unchanged Change = iota
	Added
	Updated
)

// String returns the lower-case name.
func (c Change) String() string { return [...]string{"unchanged", "added", "updated"}[c] }

// NotFoundError names an object that does not exist. It matches os.ErrNotExist.
type NotFoundError struct {
	What string // names the object: "service 10.96.0.100:5201/tcp"
}

func (e *NotFoundError) Error() string { return e.What + " does not exist" }

// Is makes the error match os.ErrNotExist.
func (e *NotFoundError) Is(target error) bool { return target == os.ErrNotExist }

// ConflictError reports that another object uses the frontend, address or control group.
type ConflictError struct {
	What  string        // describes the conflict
	Owner service.Owner // the owner of the other service; NoOwner for other objects
}

func (e *ConflictError) Error() string { return e.What }

// DeviationError lists how an object differs from the state in which it was created.
type DeviationError struct {
	What       string // an endpoint, a host or an uplink, with its name
	Deviations []string
}

func (e *DeviationError) Error() string { return e.What + ": " + strings.Join(e.Deviations, "; ") }

// deviation returns nil if nothing was found.
func deviation(what string, found ...string) error {
	if len(found) == 0 {
		return nil
	}
	return &DeviationError{What: what, Deviations: found}
}
