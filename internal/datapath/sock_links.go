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

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// socketLinkPrefix starts the names of pinned links to cgroups. Those of endpoints start with a digit.
const socketLinkPrefix = "cgroup-"

func (l layout) socketLinkPin(id uint64, program string) string {
	return filepath.Join(l.links(), fmt.Sprintf("%s%d-%s", socketLinkPrefix, id, program))
}

// parseSocketLinkPin is the reverse of socketLinkPin, for a file's name.
func parseSocketLinkPin(name string) (id uint64, program string, ok bool) {
	rest, ok := strings.CutPrefix(name, socketLinkPrefix)
	if !ok {
		return 0, "", false
	}
	number, program, ok := strings.Cut(rest, "-")
	id, err := strconv.ParseUint(number, 10, 64)
	known := slices.ContainsFunc(socketHooks(), func(h socketHook) bool { return h.program == program })
	return id, program, ok && err == nil && known
}

// socketLink is a pinned link to a cgroup.
type socketLink struct {
	cgroup  uint64
	program string
	path    string
}

// socketLinks returns all pinned links to cgroups, those of one cgroup side by side.
func (d *Datapath) socketLinks() ([]socketLink, error) {
	entries, err := os.ReadDir(d.layout.links())
	if err != nil {
		return nil, fmt.Errorf("read links: %w", err)
	}
	var links []socketLink
	for _, entry := range entries {
		if id, program, ok := parseSocketLinkPin(entry.Name()); ok {
			links = append(links, socketLink{id, program, filepath.Join(d.layout.links(), entry.Name())})
		}
	}
	slices.SortStableFunc(links, func(a, b socketLink) int { return cmp.Compare(a.cgroup, b.cgroup) })
	return links, nil
}

// attachCgroup makes all programs sit on the cgroup. Attachments that are there stay; if one fails, those that were made
// go again. What others have attached stays too.
func (d *Datapath) attachCgroup(c *cgroup) (made int, err error) {
	var paths []string
	defer func() {
		if err == nil {
			return
		}
		for _, path := range slices.Backward(paths) {
			err = errors.Join(err, detachLink(path))
		}
	}()
	for _, h := range socketHooks() {
		path := d.layout.socketLinkPin(c.id, h.program)
		if on, err := attachedToCgroup(path); err == nil && on == c.id {
			continue
		}
		if err := detachLink(path); err != nil {
			return 0, err
		}
		if err := d.attachSocketHook(path, h, c); err != nil {
			return 0, err
		}
		paths = append(paths, path)
	}
	return len(paths), nil
}

func (d *Datapath) attachSocketHook(path string, h socketHook, c *cgroup) error {
	p, err := d.socketProgram(h.program)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(c.dir.Fd()), Program: p, Attach: h.attach})
	if err != nil {
		return fmt.Errorf("attach %s to cgroup %q: %w", h.program, c.path, err)
	}
	return pinLink(l, path)
}

// attachedToCgroup returns the id of the cgroup that a pinned link is on; 0 if it was detached, or the cgroup is gone.
func attachedToCgroup(path string) (uint64, error) {
	info, err := linkInfo(path)
	if err != nil {
		return 0, err
	}
	cgroup := info.Cgroup()
	if cgroup == nil {
		return 0, fmt.Errorf("link %q is not of a cgroup", path)
	}
	return cgroup.CgroupId, nil
}

// detachCgroup takes all programs off the cgroup with the id, also when it is gone.
func (d *Datapath) detachCgroup(id uint64) error {
	for _, h := range slices.Backward(socketHooks()) {
		if err := detachLink(d.layout.socketLinkPin(id, h.program)); err != nil {
			return err
		}
	}
	return nil
}

// updateSocketLinks puts this build's programs into every attachment to a cgroup.
func (d *Datapath) updateSocketLinks() error {
	links, err := d.socketLinks()
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := d.updateSocketLink(l); err != nil {
			return err
		}
	}
	return nil
}

func (d *Datapath) updateSocketLink(s socketLink) error {
	p, err := d.socketProgram(s.program)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	// A link whose cgroup is gone waits to be forgotten.
	if err := replaceProgram(s.path, p); err != nil && !errors.Is(err, unix.ENOLINK) {
		return err
	}
	return nil
}
