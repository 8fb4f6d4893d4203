// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func (l layout) linkPin(id uint32, h hook) string {
	return filepath.Join(l.links(), fmt.Sprintf("%d-%s", id, h))
}

// parseLinkPin is the reverse of linkPin, for a file's name.
func parseLinkPin(name string) (uint32, hook, bool) {
	number, rest, ok := strings.Cut(name, "-")
	id, err := strconv.ParseUint(number, 10, 32)
	if !ok || err != nil {
		return 0, hook{}, false
	}
	for _, h := range hooks() {
		if rest == h.String() {
			return uint32(id), h, true
		}
	}
	return 0, hook{}, false
}

// attach makes both programs sit on the device. It must run in the device's namespace. Attachments that are there stay.
func (d *Datapath) attach(id uint32, s side, ifindex int) (changed bool, err error) {
	var made []string
	defer func() {
		if err == nil {
			return
		}
		for _, path := range made {
			err = errors.Join(err, detachLink(path))
		}
	}()
	for _, h := range s.hooks() {
		path := d.layout.linkPin(id, h)
		on, err := attachedTo(path)
		if err == nil && (on == ifindex || (on != 0 && h.attachType() == ebpf.AttachNetkitPeer)) {
			continue // of a netkit's peer, it is the index in the pod
		}
		if err := detachLink(path); err != nil {
			return false, err
		}
		if err := d.attachOne(path, h, ifindex); err != nil {
			return false, err
		}
		made = append(made, path)
	}
	return len(made) > 0, nil
}

// attachNew is attach for an endpoint that is new, whose id none ever had before.
func (d *Datapath) attachNew(id uint32, s side, ifindex int) error {
	for _, h := range s.hooks() {
		if err := d.attachOne(d.layout.linkPin(id, h), h, ifindex); err != nil {
			return err // and the caller drops the endpoint
		}
	}
	return nil
}

func (d *Datapath) attachOne(path string, h hook, ifindex int) error {
	p, err := d.program(h)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	l, err := h.attach(p, ifindex)
	if err != nil {
		return fmt.Errorf("attach %s to interface %d: %w", h.program, ifindex, err)
	}
	return pinLink(l, path)
}

// attachedTo returns the index of the device that a pinned link is on, in the device's namespace; 0 if it is gone.
func attachedTo(path string) (int, error) {
	info, err := linkInfo(path)
	if err != nil {
		return 0, err
	}
	if tcx := info.TCX(); tcx != nil {
		return int(tcx.Ifindex), nil
	}
	if netkit := info.Netkit(); netkit != nil {
		return int(netkit.Ifindex), nil
	}
	return 0, fmt.Errorf("link %q is neither tcx nor netkit", path)
}

// alive says whether a device still has a program of the endpoint.
func (d *Datapath) alive(id uint32) bool {
	for _, h := range hooks() {
		if on, err := attachedTo(d.layout.linkPin(id, h)); err == nil && on != 0 {
			return true
		}
	}
	return false
}

// detach removes all attachments of an endpoint.
func (d *Datapath) detach(id uint32) error {
	for _, h := range hooks() {
		if err := detachLink(d.layout.linkPin(id, h)); err != nil {
			return err
		}
	}
	return nil
}

// detachLink detaches a program and unpins its link. To unpin alone is not enough: the kernel detaches some time later,
// and until then attaches no other in its place. It is no error if there is no such link, or its device is gone.
func detachLink(path string) error {
	l, err := openLink(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	if err := l.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) {
		return fmt.Errorf("detach %q: %w", filepath.Base(path), err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("unpin link: %w", err)
	}
	return nil
}

// updateLinks puts this build's programs into every attachment.
func (d *Datapath) updateLinks() error {
	entries, err := os.ReadDir(d.layout.links())
	if err != nil {
		return fmt.Errorf("read links: %w", err)
	}
	for _, entry := range entries {
		_, h, ok := parseLinkPin(entry.Name())
		if !ok {
			_, h, ok = parseUplinkPin(entry.Name())
		}
		if !ok {
			continue
		}
		if err := d.updateLink(filepath.Join(d.layout.links(), entry.Name()), h); err != nil {
			return err
		}
	}
	return nil
}

func (d *Datapath) updateLink(path string, h hook) error {
	p, err := d.program(h)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	// A link whose device is gone waits for its endpoint to be deleted.
	if on, err := attachedTo(path); err == nil && on == 0 {
		return nil
	}
	return replaceProgram(path, p)
}
