// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"mustang/internal/cgroup"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
)

// Sockets are the sockets that are translated when they call a service. Their processes are in the control groups of
// Attach, and they were opened in the network namespaces of Put or of endpoints. Namespaces have owners; control
// groups do not.
type Sockets struct{ o *objects.Objects }

// Cgroup is a control group whose processes' sockets are translated.
type Cgroup struct {
	ID   uint64 `json:"id"`   // the kernel's; it is never reused
	Path string `json:"path"` // the group's directory
}

// Attach attaches the programs to the control group with the directory path, for all processes in it and in the
// groups below it. Other programs stay, as do programs that are attached already; if a step fails, all is undone.
// Connected sockets stay as they are. Errors: as of objects.ProbeSocket; os.ErrNotExist; *ConflictError if a group
// above or below it has the programs, which would translate twice.
func (s Sockets) Attach(ctx context.Context, path string) (Change, error) {
	if err := objects.ProbeSocket(); err != nil {
		return Unchanged, err
	}
	change := Unchanged
	err := s.onCgroup(ctx, path, func(c *cgroup.Group, attached []*cgroup.Group) error {
		had := false
		for _, other := range attached {
			switch {
			case other.ID == c.ID:
				had = true
			case other.Contains(c) || c.Contains(other):
				return &ConflictError{What: fmt.Sprintf(
					"cgroup %q: the programs are attached to %q, and one contains the other", c.Path, other.Path)}
			}
		}
		if err := s.o.LoadSocketPrograms(); err != nil {
			return err
		}
		missing := s.o.Missing(cgroupLinks(c.ID), c.ID)
		if err := s.o.AttachAll(missing, c.FD()); err != nil {
			return fmt.Errorf("cgroup %q: %w", c.Path, err)
		}
		switch {
		case len(missing) > 0 && had:
			change = Updated
		case len(missing) > 0:
			change = Added
		}
		return nil
	})
	return change, err
}

// Detach detaches the programs from a control group. Connected sockets stay connected to their backends, and show the
// backends as their peers from then on. If the programs were not attached, the error is a *NotFoundError. It also
// matches os.ErrNotExist if the group is gone, which detaches them anyway.
func (s Sockets) Detach(ctx context.Context, path string) error {
	return s.onCgroup(ctx, path, func(c *cgroup.Group, attached []*cgroup.Group) error {
		if !slices.ContainsFunc(attached, func(other *cgroup.Group) bool { return other.ID == c.ID }) {
			return &NotFoundError{What: fmt.Sprintf("socket translation of cgroup %q", c.Path)}
		}
		return s.detach(c.ID)
	})
}

// onCgroup calls fn with a control group and all groups that have programs, with the lock of the links.
func (s Sockets) onCgroup(ctx context.Context, path string,
	fn func(c *cgroup.Group, attached []*cgroup.Group) error) error {
	c, err := cgroup.Open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	return s.o.WithLinks(ctx, func() error {
		attached, err := s.cgroups(s.detach)
		if err != nil {
			return err
		}
		defer closeCgroups(attached)
		return fn(c, attached)
	})
}

func cgroupLinks(id uint64) []objects.Link {
	return objects.Link{ID: id}.At(objects.AttachCgroup.Hooks())
}

func (s Sockets) detach(id uint64) error {
	links := cgroupLinks(id)
	slices.Reverse(links)
	return s.o.DetachAll(links)
}

// Cgroups returns the control groups that have a program, sorted by path. Gone groups are left out. It takes no lock.
func (s Sockets) Cgroups(context.Context) ([]Cgroup, error) {
	attached, err := s.cgroups(func(uint64) error { return nil })
	if err != nil {
		return nil, err
	}
	defer closeCgroups(attached)
	list := make([]Cgroup, 0, len(attached))
	for _, c := range attached {
		list = append(list, Cgroup{ID: c.ID, Path: c.Path})
	}
	slices.SortFunc(list, func(a, b Cgroup) int { return cmp.Compare(a.Path, b.Path) })
	return list, nil
}

func closeCgroups(list []*cgroup.Group) {
	for _, c := range list {
		c.Close()
	}
}

// cgroups opens all control groups with links, and calls gone with missing groups. If gone detaches them, the caller
// has the lock of the links.
func (s Sockets) cgroups(gone func(id uint64) error) (_ []*cgroup.Group, err error) {
	links, err := s.o.Links()
	if err != nil {
		return nil, err
	}
	var ids []uint64
	for _, k := range links {
		if k.Hook.Point == objects.AttachCgroup && !slices.Contains(ids, k.ID) {
			ids = append(ids, k.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	path, err := cgroup.Root()
	if err != nil {
		return nil, err
	}
	root, err := cgroup.Open(path)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var open []*cgroup.Group
	defer func() {
		if err != nil {
			closeCgroups(open)
		}
	}()
	for _, id := range ids {
		c, err := root.OpenID(id)
		if errors.Is(err, os.ErrNotExist) {
			if err := gone(id); err != nil {
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

// Check returns a *DeviationError unless the sockets of a host are translated. The owner must have registered its
// namespace, and the control group with the directory path must have the programs. It takes no lock and only reads.
func (s Sockets) Check(owner service.Owner, ns *netns.Namespace, path string) error {
	cookie, err := ns.Cookie()
	if err != nil {
		return err
	}
	c, err := cgroup.Open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	var found, missing []string
	row, _, err := s.o.Namespaces.Get(cookie)
	if err != nil {
		return err
	}
	if decodeScope(row, owner) != HostScope {
		found = append(found, "its network namespace is not registered")
	}
	for _, k := range s.o.Missing(cgroupLinks(c.ID), c.ID) {
		missing = append(missing, k.Hook.Program)
	}
	if len(missing) > 0 {
		found = append(found, fmt.Sprintf("control group %q lacks the socket programs %s", c.Path,
			strings.Join(missing, ", ")))
	}
	return deviation(fmt.Sprintf("sockets of host %q", ns.Name()), found...)
}

// Sockets returns the handle of socket translation.
func (d *Datapath) Sockets() Sockets { return Sockets{d.objects} }
