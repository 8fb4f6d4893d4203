// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// errNoRoom is what the kernel answers when a hash map is full.
const errNoRoom = unix.E2BIG

// Options say where the datapath is pinned and how much its maps hold. Sizes count only when the maps are created: maps
// that are there keep the sizes that they have. Zero means the default.
type Options struct {
	// Root is the directory on a bpffs that everything is pinned under; it belongs to the datapath alone.
	// DefaultRoot if empty.
	Root string
	// MaxServices counts rows: a service of protocol any takes two. 131072 by default.
	MaxServices uint32
	// MaxBackends counts backends of all services. A service that is being changed holds its old and its new
	// backends for a moment. 524288 by default.
	MaxBackends uint32
	// MaxConnections counts rows: a connection takes two, one for each direction. 131072 by default. They take about
	// 170 bytes each, at once. Half as many backends of unconnected datagram sockets are remembered.
	MaxConnections uint32
	// MaxEndpoints counts addresses of pods. 16384 by default.
	MaxEndpoints uint32
}

// Datapath is the pinned maps and programs under one root. Its methods may be called by several goroutines, and several
// processes may each have one over the same root, at once.
type Datapath struct {
	layout layout
	// namespaces are those whose sockets are translated. The other maps of socket translation are only the programs'.
	namespaces *ebpf.Map
	tables
}

// Open creates the pinned maps and programs under o.Root, or uses those that are there. Programs of another build than
// this one's are replaced, in place where they are attached: no packet misses a program. Errors: ErrNotRoot,
// *BPFFSError, *LayoutError, *UnsupportedError on a kernel before 6.6.
func Open(o Options) (*Datapath, error) {
	l, err := o.layout()
	if err != nil {
		return nil, err
	}
	for {
		d, err := open(l, o)
		// Another process may remove the directory between our making and our locking it.
		if errors.Is(err, errGone) {
			continue
		}
		return d, err
	}
}

// errGone says that the root was removed while it was being opened.
var errGone = errors.New("root was removed")

func open(l layout, o Options) (_ *Datapath, err error) {
	_, statErr := os.Stat(l.version())
	fresh := errors.Is(statErr, os.ErrNotExist)
	if fresh {
		if err := probe(); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(l.root, 0o700); err != nil {
			return nil, fmt.Errorf("create pin directory: %w", err)
		}
	}
	unlock, err := lock(l.root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := l.check(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && fresh {
			_ = os.RemoveAll(l.version())
		}
	}()
	if err := l.create(); err != nil {
		return nil, err
	}
	d, err := openMaps(l, o.sizes())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.ensurePrograms(), d.ensureSocketPrograms()); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// OpenExisting uses what is pinned under o.Root and creates nothing. The error matches os.ErrNotExist when there is
// nothing. Sizes in o don't count.
func OpenExisting(o Options) (*Datapath, error) {
	l, err := o.layout()
	if err != nil {
		return nil, err
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	return openMaps(l, nil)
}

// openMaps opens the maps that methods use, and creates those that are missing if sizes are given. Tables that are there
// wait for the first method that needs them.
func openMaps(l layout, sizes map[string]uint32) (*Datapath, error) {
	d := &Datapath{layout: l}
	sockets := pinner{layout: l, sizes: sizes, load: loadSock}
	if err := sockets.open(map[string]**ebpf.Map{sockMapNamespaces: &d.namespaces}); err != nil {
		return nil, err
	}
	if sizes == nil || l.hasTables() {
		return d, nil
	}
	if err := d.openTables(sizes); err != nil {
		_ = d.namespaces.Close()
		return nil, err
	}
	return d, nil
}

// layout checks what must hold before anything is touched.
func (o Options) layout() (layout, error) {
	root := o.Root
	if root == "" {
		root = DefaultRoot
	}
	if os.Geteuid() != 0 {
		return layout{}, fmt.Errorf("open %q: %w", root, ErrNotRoot)
	}
	return layout{root: root}, checkFilesystem(root)
}

// Close frees what this process holds. What is pinned goes on working.
func (d *Datapath) Close() error {
	if err := errors.Join(d.closeTables(), d.namespaces.Close()); err != nil {
		return fmt.Errorf("close maps: %w", err)
	}
	return nil
}
