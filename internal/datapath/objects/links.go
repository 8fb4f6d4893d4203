// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Links returns all pinned links.
func (o *Objects) Links() ([]Link, error) {
	entries, err := os.ReadDir(o.layout.links)
	if err != nil {
		return nil, fmt.Errorf("read links: %w", err)
	}
	var links []Link
	for _, entry := range entries {
		if k, ok := (Link{}).Parse(entry.Name()); ok {
			links = append(links, k)
		}
	}
	return links, nil
}

// Attach attaches this build's program and pins the link. The target is the index of a device in the calling thread's
// network namespace, or the file descriptor of a control group. Callers have the lock of the links.
func (o *Objects) Attach(k Link, target int) error {
	p, err := o.Program(k.Hook)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	o.beforeLink()
	l, err := attach(k.Hook, p, target)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the pin holds it
	if err := l.Pin(o.layout.linkPin(k)); err != nil {
		return fmt.Errorf("pin link %s: %w", k, err)
	}
	return nil
}

func attach(h Hook, p *ebpf.Program, target int) (l link.Link, err error) {
	at := fmt.Sprintf("interface %d", target)
	switch h.Point.base() {
	case AttachCgroup:
		at = "cgroup"
		l, err = link.AttachRawLink(link.RawLinkOptions{Target: target, Program: p, Attach: h.AttachType()})
	case AttachNetkit:
		l, err = link.AttachNetkit(link.NetkitOptions{Interface: target, Program: p, Attach: h.AttachType()})
	default:
		options := link.TCXOptions{Interface: target, Program: p, Attach: h.AttachType()}
		if h.Program == tcProgOuterGuard { // before translation: it identifies pods by their own addresses
			options.Anchor = link.Head()
		}
		l, err = link.AttachTCX(options)
	}
	if err != nil {
		return nil, fmt.Errorf("attach %s to %s: %w", h.Program, at, err)
	}
	return l, nil
}

// Attached returns the index of the device that a link is attached to, in the device's network namespace, or the ID
// of the control group; 0 if that is gone. If the link is missing, the error matches os.ErrNotExist.
func (o *Objects) Attached(k Link) (uint64, error) {
	target, _, err := readLink(o.layout.linkPin(k))
	return target, err
}

func readLink(path string) (target uint64, program ebpf.ProgramID, err error) {
	l, err := openLink(path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = l.Close() }()
	info, err := l.Info()
	if err != nil {
		return 0, 0, fmt.Errorf("read link %q: %w", path, err)
	}
	if tcx := info.TCX(); tcx != nil {
		return uint64(tcx.Ifindex), info.Program, nil
	}
	if netkit := info.Netkit(); netkit != nil {
		return uint64(netkit.Ifindex), info.Program, nil
	}
	if cgroup := info.Cgroup(); cgroup != nil {
		return cgroup.CgroupId, info.Program, nil
	}
	return 0, 0, fmt.Errorf("link %q is not a tcx, netkit or cgroup link", path)
}

// Missing returns the links whose programs are not on a device, by its index, or on a control group, by its ID. The
// kernel stores a link of a netkit's peer with the index that the peer has in the pod.
func (o *Objects) Missing(links []Link, target uint64) []Link {
	return slices.DeleteFunc(slices.Clone(links), func(k Link) bool {
		on, err := o.Attached(k)
		return err == nil && on != 0 && (on == target || k.Hook.AttachType() == ebpf.AttachNetkitPeer)
	})
}

// AttachAll attaches programs as Attach does, in place of programs on earlier targets; all or none.
func (o *Objects) AttachAll(links []Link, target int) error {
	for i, k := range links {
		if err := errors.Join(o.Detach(k), o.Attach(k, target)); err != nil {
			slices.Reverse(links[:i])
			return errors.Join(err, o.DetachAll(links[:i]))
		}
	}
	return nil
}

// DetachAll detaches programs as Detach does, all that it can.
func (o *Objects) DetachAll(links []Link) (err error) {
	for _, k := range links {
		err = errors.Join(err, o.Detach(k))
	}
	return err
}

// Detach detaches a program and unpins its link. It succeeds if the link is missing, or its target is gone. Callers
// have the lock of the links.
func (o *Objects) Detach(k Link) error {
	o.beforeLink()
	return detach(o.layout.linkPin(k))
}

func (o *Objects) beforeLink() {
	if o.BeforeLink != nil {
		o.BeforeLink()
	}
}

// detach does not leave it at unpinning: the kernel would detach some time later, and refuse another link until then.
func detach(path string) error {
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

func openLink(path string) (link.Link, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, fmt.Errorf("open link: %w", err)
	}
	return l, nil
}

// updateLinks makes all links run this build's programs. A link whose device or cgroup is gone stays until its owner
// deletes it.
func (o *Objects) updateLinks() error {
	links, err := o.Links()
	for _, k := range links {
		if on, err := o.Attached(k); err == nil && on == 0 {
			continue
		}
		if err := o.updateLink(k); err != nil {
			return err
		}
	}
	return err
}

func (o *Objects) updateLink(k Link) error {
	p, err := o.Program(k.Hook)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	l, err := openLink(o.layout.linkPin(k))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	if err := l.Update(p); err != nil && !errors.Is(err, unix.ENOLINK) {
		return fmt.Errorf("replace program of %s: %w", k, err)
	}
	return nil
}

// AttachedProgram is an eBPF program that is attached to a device.
type AttachedProgram struct {
	// Hook is the place: "tcx ingress", "tcx egress", "netkit primary", "netkit peer", "tc ingress", "tc egress" or "xdp".
	Hook string
	// ID is the kernel's number of the program. Name and Tag are empty if the program is gone by now.
	ID        uint32
	Name, Tag string
	LinkID    uint32 // the number of the link that holds the program; 0 if it was attached without one
	Mustang   bool   // true for a program of this datapath, under any root
}

// ProgramsOn returns the tcx and netkit programs of a device of the calling thread's network namespace, in the order in
// which they run. The programs of a netkit pair are both at the primary device: the other does not show its program.
func ProgramsOn(ifindex int, kind string) (out []AttachedProgram) {
	for _, h := range []struct {
		name   string
		attach ebpf.AttachType
		kind   string // of the devices that have the hook; empty for all
	}{
		{"tcx ingress", ebpf.AttachTCXIngress, ""},
		{"tcx egress", ebpf.AttachTCXEgress, ""},
		{"netkit primary", ebpf.AttachNetkitPrimary, "netkit"},
		{"netkit peer", ebpf.AttachNetkitPeer, "netkit"},
	} {
		if h.kind != "" && h.kind != kind {
			continue
		}
		// Various errors: no programs, the kernel or the device lacks the hook, the device is gone.
		result, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: h.attach})
		if err != nil {
			continue
		}
		for _, attached := range result.Programs {
			p := AttachedProgram{Hook: h.name, ID: uint32(attached.ID)}.Described()
			if id, ok := attached.LinkID(); ok {
				p.LinkID = uint32(id)
			}
			out = append(out, p)
		}
	}
	return out
}

// Described returns the program at its hook with the kernel's description, found by its ID.
func (p AttachedProgram) Described() AttachedProgram {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
	if err != nil {
		return p
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		return p
	}
	p.Name, p.Tag = info.Name, info.Tag
	p.Mustang = isOurs(info)
	return p
}

// isOurs reports whether a program has one of our names and uses our maps: the kernel does not store its creator.
func isOurs(info *ebpf.ProgramInfo) bool {
	if !slices.ContainsFunc(new(Objects).DeviceHooks(), func(h Hook) bool { return h.Program == info.Name }) {
		return false
	}
	ids, _ := info.MapIDs()
	names := map[string]bool{}
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		if info, err := m.Info(); err == nil {
			names[info.Name] = true
		}
		_ = m.Close()
	}
	return names["metrics"] && (names["connections"] || names["source_guard"])
}
