// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Census knows the network namespaces that there were when it was taken: those
// with a name below Directory, and those of processes. It holds them open. It
// is for one goroutine.
type Census struct {
	places []*inhabited
}

// inhabited is a namespace of a census.
type inhabited struct {
	Place
	ns *Namespace
	// links are the namespace's, once they were asked for.
	links  []Link
	listed bool
}

// TakeCensus looks for network namespaces. What goes while it looks is left
// out. It needs root.
func TakeCensus() (_ *Census, err error) {
	c := &Census{}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	names, err := ListNamespaces("")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		// A name may be left without a namespace.
		if ns, err := OpenNamespace(filepath.Join(Directory, name)); err == nil {
			c.add(ns, Place{Name: name, NSID: -1})
		}
	}
	pids, err := processes()
	if err != nil {
		return nil, fmt.Errorf("look for network namespaces: %w", err)
	}
	for _, pid := range pids {
		path := fmt.Sprintf("/proc/%d/ns/net", pid)
		var stat unix.Stat_t
		if unix.Stat(path, &stat) != nil {
			continue
		}
		if known := c.find(stat.Ino); known != nil {
			if known.PID == 0 {
				known.addProcess(pid)
			}
			continue
		}
		if ns, err := OpenNamespace(path); err == nil {
			p := Place{NSID: -1}
			p.addProcess(pid)
			c.add(ns, p)
		}
	}
	return c, nil
}

// add takes over ns, unless it is known.
func (c *Census) add(ns *Namespace, p Place) {
	inode, err := ns.Inode()
	if err != nil || c.find(inode) != nil {
		_ = ns.Close()
		return
	}
	p.Inode = inode
	c.places = append(c.places, &inhabited{Place: p, ns: ns})
}

func (c *Census) find(inode uint64) *inhabited {
	for _, p := range c.places {
		if p.Inode == inode {
			return p
		}
	}
	return nil
}

// Place returns what people know n as.
func (c *Census) Place(n *Namespace) (Place, error) {
	inode, err := n.Inode()
	if err != nil {
		return Place{}, err
	}
	if known := c.find(inode); known != nil {
		return known.Place, nil
	}
	return Place{Inode: inode, NSID: -1}, nil
}

// Namespaces returns all namespaces of the census, which stay its own.
func (c *Census) Namespaces() []*Namespace {
	all := make([]*Namespace, 0, len(c.places))
	for _, p := range c.places {
		all = append(all, p.ns)
	}
	return all
}

// Close lets go of the namespaces.
func (c *Census) Close() error {
	var errs []error
	for _, p := range c.places {
		errs = append(errs, p.ns.Close())
	}
	c.places = nil
	return errors.Join(errs...)
}

// processes returns the ids of all processes, the lowest first.
func processes() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}
