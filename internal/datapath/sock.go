// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
)

// SocketCgroup is a control group whose processes' sockets are translated.
type SocketCgroup struct {
	// ID is the kernel's for the group; it is not used again.
	ID uint64
	// Path is the group's directory.
	Path string
}

// AttachSocket attaches socket translation to the control group with the directory path, for all processes that open
// sockets in it and in the groups below it, as far as they are in namespaces of endpoints or hosts (AddHost). What is
// attached already stays, others' programs included; if a step fails, all is undone. Sockets that are connected stay as
// they are. Errors: what ProbeSocket says; os.ErrNotExist; *ConflictError if a group above or below it has the programs,
// which would translate twice.
func (d *Datapath) AttachSocket(path string) (Change, error) {
	if err := ProbeSocket(); err != nil {
		return Unchanged, err
	}
	c, err := openCgroup(path)
	if err != nil {
		return Unchanged, err
	}
	defer c.close()
	unlock, err := d.Lock()
	if err != nil {
		return Unchanged, err
	}
	defer unlock()
	attached, err := d.attachedCgroups(d.detachCgroup)
	if err != nil {
		return Unchanged, err
	}
	defer closeCgroups(attached)
	had := false
	for _, other := range attached {
		switch {
		case other.id == c.id:
			had = true
		case other.holds(c) || c.holds(other):
			return Unchanged, &ConflictError{What: fmt.Sprintf("cgroup %q: the programs are attached to %q, and one holds the other",
				c.path, other.path)}
		}
	}
	if err := os.MkdirAll(d.layout.socketPrograms(), 0o700); err != nil {
		return Unchanged, fmt.Errorf("create pin directory: %w", err)
	}
	if err := d.ensureSocketPrograms(); err != nil {
		return Unchanged, err
	}
	made, err := d.attachCgroup(c)
	switch {
	case err != nil || made == 0:
		return Unchanged, err
	case had:
		return Updated, nil
	}
	return Added, nil
}

// DetachSocket detaches socket translation from a control group. Connected sockets stay connected to their backends, and
// name those as their peers from now on. The error is a *NotFoundError if it was not attached; it matches os.ErrNotExist
// too if the group is gone, which ends all attachments by itself.
func (d *Datapath) DetachSocket(path string) error {
	c, err := openCgroup(path)
	if err != nil {
		return err
	}
	defer c.close()
	unlock, err := d.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	attached, err := d.attachedCgroups(d.detachCgroup)
	if err != nil {
		return err
	}
	defer closeCgroups(attached)
	if !slices.ContainsFunc(attached, func(other *cgroup) bool { return other.id == c.id }) {
		return &NotFoundError{What: fmt.Sprintf("socket translation of cgroup %q", c.path)}
	}
	return d.detachCgroup(c.id)
}

// SocketCgroups returns the control groups that socket translation is attached to, sorted by path. Groups that are gone
// are not among them.
func (d *Datapath) SocketCgroups() ([]SocketCgroup, error) {
	unlock, err := d.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	attached, err := d.attachedCgroups(func(uint64) error { return nil })
	if err != nil {
		return nil, err
	}
	defer closeCgroups(attached)
	list := make([]SocketCgroup, 0, len(attached))
	for _, c := range attached {
		list = append(list, SocketCgroup{ID: c.id, Path: c.path})
	}
	slices.SortFunc(list, func(a, b SocketCgroup) int { return cmp.Compare(a.Path, b.Path) })
	return list, nil
}

// attachedCgroups opens all control groups that have links, and calls gone with those that are no more. The caller has
// the lock.
func (d *Datapath) attachedCgroups(gone func(id uint64) error) (_ []*cgroup, err error) {
	links, err := d.socketLinks()
	if err != nil || len(links) == 0 {
		return nil, err
	}
	path, err := CgroupRoot()
	if err != nil {
		return nil, err
	}
	root, err := openCgroup(path)
	if err != nil {
		return nil, err
	}
	defer root.close()
	var open []*cgroup
	defer func() {
		if err != nil {
			closeCgroups(open)
		}
	}()
	for i, l := range links {
		if i > 0 && links[i-1].cgroup == l.cgroup {
			continue
		}
		c, err := openCgroupID(root, l.cgroup)
		if errors.Is(err, os.ErrNotExist) {
			if err := gone(l.cgroup); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		open = append(open, c)
	}
	return open, nil
}

func closeCgroups(list []*cgroup) {
	for _, c := range list {
		c.close()
	}
}
