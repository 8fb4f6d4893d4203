// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"strings"

	"mustang/internal/service"
)

// errNumbersUsedUp reports that a number that is never reused has reached its end, after four billion changes.
// Connections and services go on.
var errNumbersUsedUp = errors.New(
	"the numbers of services, their revisions, or endpoints are used up: make the datapath anew (mustang datapath unload)")

// NotFoundError names an object that does not exist. It matches os.ErrNotExist.
type NotFoundError struct {
	// What names the object: "service 10.96.0.100:5201/tcp".
	What string
}

func (e *NotFoundError) Error() string { return e.What + " does not exist" }

// Is makes the error match os.ErrNotExist.
func (e *NotFoundError) Is(target error) bool { return target == os.ErrNotExist }

// ConflictError reports that another object uses the frontend, address or control group.
type ConflictError struct {
	// What describes the conflict.
	What string
	// Owner is the owner of the other service; NoOwner for other objects.
	Owner service.Owner
}

func (e *ConflictError) Error() string { return e.What }

// DeviationError lists how an object differs from the state in which it was created.
type DeviationError struct {
	What       string // an endpoint, a host or an uplink, with its name
	Deviations []string
}

func (e *DeviationError) Error() string {
	return e.What + ": " + strings.Join(e.Deviations, "; ")
}

// deviation returns nil if nothing was found.
func deviation(what string, found ...string) error {
	if len(found) == 0 {
		return nil
	}
	return &DeviationError{What: what, Deviations: found}
}
