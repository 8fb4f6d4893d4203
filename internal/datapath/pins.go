// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// builds are the pinned programs in a directory: how many are of this build, and the paths of the others.
type builds struct {
	ours   int
	others []string
}

// pinnedBuilds reads the directory. The error matches os.ErrNotExist if there is none.
func pinnedBuilds(dir, digest string) (b builds, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return builds{}, fmt.Errorf("read pinned programs: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), digest+"-") {
			b.ours++
		} else {
			b.others = append(b.others, filepath.Join(dir, entry.Name()))
		}
	}
	return b, nil
}

// replace has update put this build's programs in the place of the others', whose pins go last, so that a process that
// dies in between is made up for by the next.
func (b builds) replace(update func() error) error {
	if len(b.others) == 0 {
		return nil
	}
	if err := update(); err != nil {
		return err
	}
	for _, path := range b.others {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("unpin program: %w", err)
		}
	}
	return nil
}

// pinProgram pins a program in the place of what may be left there of one.
func pinProgram(p *ebpf.Program, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unpin program: %w", err)
	}
	if err := p.Pin(path); err != nil {
		return fmt.Errorf("pin program %s: %w", filepath.Base(path), err)
	}
	return nil
}

// pinLink pins a link, and closes it: the pin holds it from now on.
func pinLink(l link.Link, path string) error {
	defer func() { _ = l.Close() }()
	if err := l.Pin(path); err != nil {
		return fmt.Errorf("pin link %s: %w", filepath.Base(path), err)
	}
	return nil
}

// openLink opens a pinned link.
func openLink(path string) (link.Link, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, fmt.Errorf("open link: %w", err)
	}
	return l, nil
}

// linkInfo says what a pinned link is.
func linkInfo(path string) (*link.Info, error) {
	l, err := openLink(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	info, err := l.Info()
	if err != nil {
		return nil, fmt.Errorf("look at link %q: %w", path, err)
	}
	return info, nil
}

// replaceProgram has a pinned link run another program. The error matches unix.ENOLINK if what it was attached to is
// gone.
func replaceProgram(path string, p *ebpf.Program) error {
	l, err := openLink(path)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	if err := l.Update(p); err != nil {
		return fmt.Errorf("replace program of %s: %w", filepath.Base(path), err)
	}
	return nil
}
