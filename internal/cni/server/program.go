// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"mustang/internal/cni/handover"
)

// maxKnown is the number of files that a programs remembers.
const maxKnown = 64

// programs tells whether calls are of the program that belongs to this one: the same bytes, since two builds can have one
// version, or none.
type programs struct {
	none   bool // none belongs to this process
	digest [sha256.Size]byte

	mu    sync.Mutex
	known map[unix.Stat_t]bool // whether a file has the digest
}

func newPrograms(path string) (*programs, error) {
	if path == "" {
		return &programs{none: true}, nil
	}
	digest, err := digestOf(path)
	return &programs{digest: digest, known: map[unix.Stat_t]bool{}}, err
}

// calls returns nil if a call is of the program, or of its client beside the program.
func (p *programs) calls(c *handover.Call) error {
	if p.none {
		return errors.New("no plugin belongs to this program")
	}
	path := fmt.Sprintf("/proc/%d/exe", c.PID)
	if c.Plugin >= 0 {
		path = fmt.Sprintf("/proc/self/fd/%d", c.Plugin)
	}
	var file unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	file.Atim = unix.Timespec{}
	p.mu.Lock()
	defer p.mu.Unlock()
	same, known := p.known[file]
	if !known {
		digest, err := digestOf(path)
		if err != nil {
			return err
		}
		if len(p.known) >= maxKnown {
			clear(p.known)
		}
		same = digest == p.digest
		p.known[file] = same
	}
	if !same {
		return errors.New("the plugin is another build")
	}
	return nil
}

func digestOf(path string) (digest [sha256.Size]byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return digest, err
	}
	defer file.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return [sha256.Size]byte(hash.Sum(nil)), err
}
